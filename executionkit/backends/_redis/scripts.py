"""What the server does in one step, in Lua. Times inside are whole microseconds.

Each script begins with `SERVER_TIME`. Numbers are written with `%.0f`: Lua would write
large ones with an exponent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from executionkit.backends._redis.wire import Script

__all__ = ("SERVER_TIME", "Scripts")

SERVER_TIME: Final = """
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
"""
"""The clock of the server is the only one that counts."""

_ACQUIRE: Final = """
-- KEYS: the windows. ARGV: id, count of ids to take back, those ids (each with its
-- cost), (limit, period) per window, then (cost, patience) per caller; patience -1 is
-- no end of it. Replies, per caller, with milliseconds: 0 now, n in n, -n not before n.
local id, at = ARGV[1], 3
local function text(n) return string.format('%.0f', n) end
for _ = 1, tonumber(ARGV[2]) do
  for i = 1, tonumber(ARGV[at + 1]) do
    for _, key in ipairs(KEYS) do redis.call('ZREM', key, ARGV[at] .. ':' .. i) end
  end
  at = at + 2
end
local limits, periods, fits, total = {}, {}, true, 0
for i = at + 2 * #KEYS, #ARGV, 2 do total = total + tonumber(ARGV[i]) end
for k, key in ipairs(KEYS) do
  limits[k], periods[k] = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  at = at + 2
  local known = redis.call('ZCARD', key)
  if known > 64 or known + total > limits[k] then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', text(now - periods[k]))
    known = redis.call('ZCARD', key)
  end
  fits = fits and known + total <= limits[k]
end
local function lasting(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, 2 * ms + 1000) end
end
local replies, number = {}, 0
if fits and total <= 1000 then  -- by far the most common: everybody can start now
  local starts, stamp = {}, text(now)
  while at < #ARGV do
    number = number + 1
    replies[number] = 0
    for i = 1, tonumber(ARGV[at]) do
      starts[#starts + 1] = stamp
      starts[#starts + 1] = id .. ':' .. number .. ':' .. i
    end
    at = at + 2
  end
  if total > 0 then
    for k, key in ipairs(KEYS) do
      redis.call('ZADD', key, unpack(starts))
      lasting(key, math.ceil(periods[k] / 1000) + 1)
    end
  end
  return replies
end
-- The first moment at which `cost` starts fit into every window around it. Starts that
-- are promised for later count as well, on either side: that is what keeps any window
-- within its limit, whoever comes when.
local function first(cost)
  local x, moved = now, true
  for _ = 1, 1000 do
    moved = false
    for k, key in ipairs(KEYS) do
      local low, high = '(' .. text(x - periods[k]), '(' .. text(x + periods[k])
      local excess = redis.call('ZCOUNT', key, low, high) + cost - limits[k]
      if excess > 0 then
        local e = redis.call('ZRANGEBYSCORE', key, low, high, 'WITHSCORES', 'LIMIT', excess - 1, 1)
        x, moved = tonumber(e[2]) + periods[k], true
      end
    end
    if not moved then return x, true end
  end
  return x, false
end
while at < #ARGV do
  number = number + 1
  local cost, patience = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  at = at + 2
  local x, found = first(cost)
  local wait = math.ceil((x - now) / 1000)
  if not found or (patience >= 0 and x - now > patience) then
    replies[number] = -math.max(wait, 1)
  else
    for k, key in ipairs(KEYS) do
      for i = 1, cost do redis.call('ZADD', key, text(x), id .. ':' .. number .. ':' .. i) end
      lasting(key, math.ceil((x + periods[k] - now) / 1000) + 1)
    end
    replies[number] = wait
    if wait > 0 then break end
  end
end
return replies
"""

_USAGE: Final = """
return redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', now - ARGV[1]), string.format('%.0f', now))
"""

_HEAD: Final = """
-- KEYS: state (a hash), failures, probes (sorted by time), the index of all circuits.
-- ARGV: time to live in ms, the name in the index; the rest per script.
local state_key, failures, probes, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ttl, name = tonumber(ARGV[1]), ARGV[2]
local function text(n) return string.format('%.0f', n) end
local s = redis.call('HMGET', state_key, 'state', 'epoch', 'failures', 'opened', 'successes')
local state, epoch = s[1] or 'closed', tonumber(s[2] or '0')
"""

_CHANGES: Final = """
local function touch(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end
local function enter(to, ...)
  epoch = math.max(now, epoch + 1)
  redis.call('HSET', state_key, 'state', to, 'epoch', text(epoch), 'successes', '0', ...)
  redis.call('DEL', probes)
  touch(state_key, ttl)
end
local function keep()
  touch(failures, ttl)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', text(now))
  redis.call('ZADD', index, text(now + ttl * 1000), name)
  touch(index, ttl)
end
local function close()
  enter('closed', 'failures', '0', 'opened', '0')
  redis.call('DEL', failures)
  redis.call('ZREM', index, name)
end
"""

_BEFORE: Final = (
    _HEAD
    + """
-- ARGV from 3: time to stay open, probes at once, lease of a probe, an id per caller.
-- Replies: epoch, failures, ms that everybody waits (0 = nobody), callers admitted.
if state == 'closed' then return {epoch, 0, 0, #ARGV - 5} end
"""
    + _CHANGES
    + """
local failed = tonumber(s[3])
if state == 'open' then
  local left = tonumber(s[4]) + tonumber(ARGV[3]) - now
  if left > 0 then return {epoch, failed, math.ceil(left / 1000), 0} end
  enter('half_open')
  keep()
end
redis.call('ZREMRANGEBYSCORE', probes, '-inf', text(now - tonumber(ARGV[5])))
local admitted = 0
for i = 6, #ARGV do
  if not redis.call('ZSCORE', probes, ARGV[i]) then
    if redis.call('ZCARD', probes) >= tonumber(ARGV[4]) then break end
    redis.call('ZADD', probes, text(now), ARGV[i])
    touch(probes, ttl)
  end
  admitted = admitted + 1
end
return {epoch, failed, 0, admitted}
"""
)

_REPORT: Final = (
    _HEAD
    + _CHANGES
    + """
-- ARGV from 3: id, epoch, outcome, failures to open, successes to close, window (-1 =
-- failures count for ever). Replies whether it counted.
local id, outcome = ARGV[3], ARGV[5]
if tonumber(ARGV[4]) ~= epoch then return 0 end
local half = state == 'half_open'
if half and redis.call('ZREM', probes, id) == 0 then return 0 end
if outcome == 'success' then
  if not half then
    if state == 'closed' then redis.call('DEL', failures) end
  elseif redis.call('HINCRBY', state_key, 'successes', 1) >= tonumber(ARGV[7]) then
    close()
  end
elseif outcome == 'failure' then
  local threshold, window = tonumber(ARGV[6]), tonumber(ARGV[8])
  if window >= 0 then redis.call('ZREMRANGEBYSCORE', failures, '-inf', text(now - window)) end
  redis.call('ZADD', failures, text(now), id)
  redis.call('ZREMRANGEBYRANK', failures, 0, -(threshold + 1))
  local n = redis.call('ZCARD', failures)
  if half or n >= threshold then
    enter('open', 'failures', text(n), 'opened', text(now))
  end
  keep()
end
return 1
"""
)

_SNAPSHOT: Final = (
    _HEAD
    + """
-- ARGV from 3: window (-1 = for ever). Replies: state, failures, successes, probes,
-- microseconds since the opening (-1 = closed).
local low = '-inf'
if tonumber(ARGV[3]) >= 0 then low = '(' .. text(now - tonumber(ARGV[3])) end
if state == 'closed' then return {state, redis.call('ZCOUNT', failures, low, '+inf'), 0, 0, -1} end
local opened = math.max(0, now - tonumber(s[4]))
return {state, tonumber(s[3]), tonumber(s[5]), redis.call('ZCARD', probes), opened}
"""
)

_RESET: Final = _HEAD + _CHANGES + "close() return 1"

_LISTED: Final = """
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf')
"""

_KEEP: Final = """
-- KEYS: entry, index of its tool. ARGV: mode, nonce and value, time to live in ms (-1 =
-- no end), member of the index. Replies with the entry that stood in the way, or nil.
local entry, index, ttl = KEYS[1], KEYS[2], tonumber(ARGV[3])
if ARGV[1] == 'reserve' then
  local old = redis.call('GET', entry)
  if old then return old end
end
local function text(n) return string.format('%.0f', n) end
local before = redis.call('PTTL', index)
redis.call('ZREMRANGEBYSCORE', index, '-inf', text(now))
if ttl < 0 then
  redis.call('SET', entry, '0|' .. ARGV[2])
  redis.call('ZADD', index, '+inf', ARGV[4])
  if before >= 0 then redis.call('PERSIST', index) end
else
  local ends = text(now + ttl * 1000)
  redis.call('SET', entry, ends .. '|' .. ARGV[2], 'PX', ttl)
  redis.call('ZADD', index, ends, ARGV[4])
  if before == -2 or (before >= 0 and before < ttl) then redis.call('PEXPIRE', index, ttl) end
end
return nil
"""

_DROP: Final = """
-- KEYS: index of a tool, then entries. ARGV: their members of the index.
local count = 0
for i, member in ipairs(ARGV) do
  count = count + redis.call('DEL', KEYS[i + 1])
  redis.call('ZREM', KEYS[1], member)
end
return count
"""


@dataclass(frozen=True, slots=True)
class Scripts:
    """All scripts over one clock."""

    acquire: Script
    usage: Script
    before: Script
    report: Script
    snapshot: Script
    reset: Script
    listed: Script
    keep: Script
    drop: Script

    @classmethod
    def on(cls, time: str = SERVER_TIME) -> Scripts:
        """The scripts, with `time` to set `now`."""
        return cls(
            *(
                Script(source, time)
                for source in (
                    *(_ACQUIRE, _USAGE, _BEFORE, _REPORT, _SNAPSHOT, _RESET),
                    *(_LISTED, _KEEP, _DROP),
                )
            )
        )
