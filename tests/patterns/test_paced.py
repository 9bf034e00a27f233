"""Permits are taken when the budget has room, and given back when it has none."""

from __future__ import annotations

import asyncio

import pytest

from executionkit import BudgetExhaustedError, TokenBucket
from executionkit.patterns._paced import PacedRoom
from executionkit.testing import FakeClock


class Room:
    """Says whether there is room as a script says, and may refuse for good."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.waits = 0

    async def wait(self) -> None:
        self.waits += 1
        await asyncio.sleep(0)

    def now(self) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.req("budget.fresh-permits")
class TestPacedRoom:
    async def test_a_permit_for_which_there_is_no_room_is_given_back(
        self, fake_clock: FakeClock
    ) -> None:
        bucket = TokenBucket(rate=1.0, capacity=3.0)
        room = Room(False, False, True)
        paced = PacedRoom(bucket, room.wait, room.now)
        await paced.acquire()
        assert room.waits == 3
        assert bucket.stats().available == pytest.approx(2.0)
        paced.refund()
        assert bucket.stats().available == pytest.approx(3.0)

    async def test_a_refusal_gives_the_permit_back_too(
        self, fake_clock: FakeClock
    ) -> None:
        bucket = TokenBucket(rate=1.0, capacity=3.0)
        room = Room(BudgetExhaustedError("spent"))
        with pytest.raises(BudgetExhaustedError):
            await PacedRoom(bucket, room.wait, room.now).acquire(timeout=5.0)
        assert bucket.stats().available == pytest.approx(3.0)

    async def test_before_a_permit_was_had_there_is_nothing_to_give_back(
        self, fake_clock: FakeClock
    ) -> None:
        bucket = TokenBucket(rate=1.0, capacity=3.0)
        await bucket.acquire()
        room = Room()
        paced = PacedRoom(bucket, room.wait, room.now)
        paced.refund()
        assert bucket.stats().available == pytest.approx(2.0)

    async def test_a_cooldown_reaches_the_limit_behind_it(
        self, auto_clock: FakeClock
    ) -> None:
        bucket = TokenBucket(rate=1.0, capacity=3.0)
        room = Room(True)
        paced = PacedRoom(bucket, room.wait, room.now)
        paced.drain(2.0)
        begun = auto_clock.monotonic()
        await paced.acquire()
        assert auto_clock.monotonic() - begun == pytest.approx(2.0)
