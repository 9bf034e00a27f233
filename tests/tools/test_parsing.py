"""Which calls are found in which replies."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest

from executionkit._llm import LLMResponse
from executionkit.calls import CallProblem, ToolCall
from executionkit.tools.parsing import ParsedCalls, parse_calls

Shown = list[tuple[str, dict[str, Any]]]


def shown(reply: object) -> Shown:
    found = parse_calls(reply)
    assert not found.problems, found.problems
    return [(call.name, dict(call.arguments)) for call in found.calls]


def chat_call(name: str, arguments: object, **more: object) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"id-{name}", "type": "function", "function": function, **more}


ONE: Shown = [("f", {"a": 1})]
TWO: Shown = [("f", {"a": 1}), ("g", {})]
CALLS = [chat_call("f", '{"a": 1}'), chat_call("g", "")]
PLAIN = [{"name": "f", "arguments": {"a": 1}}, {"tool": "g"}]
PARTS = [
    {"text": "Let me look."},
    {"functionCall": {"name": "f", "args": {"a": 1}}},
    {"function_call": {"name": "g", "args": {}}},
]
BLOCKS = [
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
    {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
]
ITEMS = [
    {"type": "reasoning", "summary": []},
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "f",
        "arguments": '{"a": 1}',
    },
    {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
]

DATA: dict[str, object] = {
    "tool_calls": {"tool_calls": CALLS},
    "message": {"role": "assistant", "content": None, "tool_calls": CALLS},
    "message without content": {"role": "assistant", "tool_calls": CALLS},
    "completion": {"choices": [{"message": {"tool_calls": CALLS}}]},
    "list of calls": CALLS,
    "tuple of calls": tuple(CALLS),
    "arguments as objects": [chat_call("f", {"a": 1}), chat_call("g", None)],
    "plain list": PLAIN,
    "plain in tool_calls": {"tool_calls": PLAIN},
    "args": [{"name": "f", "args": {"a": 1}}, {"name": "g", "args": None}],
    "parameters": [{"name": "f", "parameters": {"a": 1}}, {"tool": "g", "input": {}}],
    "responses": {"object": "response", "output": ITEMS},
    "response items": ITEMS,
    "anthropic": {"role": "assistant", "content": BLOCKS, "stop_reason": "tool_use"},
    "blocks": BLOCKS,
    "gemini": {"candidates": [{"content": {"role": "model", "parts": PARTS}}]},
    "gemini content": {"role": "model", "parts": PARTS},
    "gemini parts": PARTS,
    "ollama": {"message": {"role": "assistant", "content": "", "tool_calls": CALLS}},
    "bedrock": {
        "output": {
            "message": {
                "content": [
                    {"toolUse": {"toolUseId": "u", "name": "f", "input": {"a": 1}}},
                    {"toolUse": {"toolUseId": "v", "name": "g", "input": {}}},
                ]
            }
        }
    },
    "many answers": [
        {"candidates": [{"content": {"parts": [PARTS[1]]}}]},
        {"candidates": [{"content": {"parts": [PARTS[2]]}}]},
    ],
    "calls": [ToolCall("1", "f", {"a": 1}), ToolCall("2", "g")],
    "calls and objects": [ToolCall("1", "f", {"a": 1}), {"tool": "g"}],
    "conversation": [
        {"role": "user", "content": "?"},
        {"role": "assistant", "tool_calls": [chat_call("old", "{}")]},
        {"role": "tool", "content": "x"},
        {"role": "assistant", "tool_calls": CALLS},
    ],
}

TEXTS: dict[str, str] = {
    "tags": """<tool name="f" args='{"a": 1}'/> then <tool name="g" args='{}'/>""",
    "tags, double quotes": '<tool name="f" args="{"a": 1}"/><tool name="g" args=""/>',
    "tags, escaped": r'<tool name="f" args="{\"a\": 1}"/><tool name="g" />',
    "tags, entities": "<tool name='f' args='{&quot;a&quot;: 1}'/><tool name='g'/>",
    "tags, swapped": """<tool args='{"a": 1}' name='f'/><tool args='{}' name='g' />""",
    "tags, other case": """<TOOL NAME="f" ARGS='{"a": 1}'/><Tool name="g" />""",
    "pairs": '<tool name="f">{"a": 1}</tool> <tool name="g"> </tool>',
    "pairs, args": """<tool name="f" args='{"a": 1}'></tool><tool name="g"></tool>""",
    "pairs, entities": (
        '<tool name="f">{&quot;a&quot;: 1}</tool><tool name="g">{}</tool>'
    ),
    "tag over lines": '<tool\n  name="f"\n  args=\'{"a":\n 1}\'\n/>\n<tool name="g"/>',
    "JSON": json.dumps({"tool_calls": CALLS}),
    "completion": json.dumps({"choices": [{"message": {"tool_calls": CALLS}}]}),
    "JSON array": json.dumps(PLAIN),
    "JSON of blocks": json.dumps(BLOCKS),
    "JSON of parts": json.dumps({"candidates": [{"content": {"parts": PARTS}}]}),
    "JSON in prose": 'I call {"name": "f", "arguments": {"a": 1}} and {"tool": "g"}.',
    "array in prose": f"I call {json.dumps(PLAIN)} now [1].",
    "fence": f"Sure:\n```json\n{json.dumps(PLAIN)}\n```\nDone.",
    "fences": (
        '```json\n{"name": "f", "arguments": {"a": 1}}\n```\n'
        '```\n{"name": "g", "arguments": {}}\n```'
    ),
    "lines": '{"name":"f","arguments":{"a":1}}\n{"name":"g","arguments":{}}',
    "llama, bare": '{"name":"f","parameters":{"a":1}}; {"name":"g","parameters":{}}',
    "llama": (
        '<|python_tag|>{"name":"f","parameters":{"a":1}};'
        ' {"name":"g","parameters":{}}<|eom_id|>'
    ),
    "function": '<function=f>{"a": 1}</function><function=g></function>',
    "hermes": (
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    ),
    "hermes, stopped": (
        '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
        '<tool_call>{"name": "g", "arguments": {}}\n'
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}},'
        ' {"name": "g", "arguments": {}}]'
    ),
    "mistral, args": '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}</s>',
    "mistral, bare": '[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{}',
    "deepseek": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"  # noqa: RUF001
        '```json\n{"a": 1}\n```<｜tool▁call▁end｜>'  # noqa: RUF001
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>"  # noqa: RUF001
        "<｜tool▁calls▁end｜>"  # noqa: RUF001
    ),
    "kimi": (
        "<|tool_calls_section_begin|>"
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|>'
        "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "llama, python": "<|python_tag|>[f(a=1), g()]<|eom_id|>",
    "llama 4": "<|python_start|>[f(a=1),\n  g()]<|python_end|><|eot|>",
    "llama, built in": "<|python_tag|>f.call(a=1); g.call()<|eom_id|>",
    "llama, one by one": "<|python_tag|>f(a=1)<|eom_id|><|python_tag|>g()",
    "llama, JSON list": (
        '<|python_tag|>[{"name": "f", "parameters": {"a": 1}},'
        ' {"name": "g", "parameters": {}}]'
    ),
    "harmony": (
        "<|channel|>analysis<|message|>Call <tool name='no'/>?<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
        '<|message|>{"a": 1}<|call|>'
        "<|start|>assistant to=functions.g<|channel|>commentary json<|message|><|call|>"
    ),
    "harmony, stopped": (
        '<|channel|>commentary to=functions.f<|message|>{"a": 1}\n'
        "<|start|>assistant<|channel|>commentary to=g code<|message|>{}"
    ),
    "deepseek 3.2": (
        "<｜DSML｜function_calls>\n"  # noqa: RUF001
        '<｜DSML｜invoke name="f">\n'  # noqa: RUF001
        '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n'  # noqa: RUF001
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n'  # noqa: RUF001
        "</｜DSML｜function_calls>"  # noqa: RUF001
    ),
}
OF_TEXTS: dict[str, str] = {
    "function": (
        "<tool_call>\n<function=f>\n<parameter=a>\nx < 1\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call><function=g></function></tool_call>"
    ),
    "invoke": (
        "I look.\n<function_calls>\n"
        '<invoke name="f">\n<parameter name="a">x < 1</parameter>\n</invoke>\n'
        '<invoke name="g">\n</invoke>\n</function_calls>'
    ),
    "invoke, prefix": (
        "<minimax:tool_call><invoke name='f'><parameter name='a'>x < 1</parameter>"
        "</invoke></minimax:tool_call><invoke name='g'></invoke>"
    ),
    "invoke, string": (
        '<｜DSML｜invoke name="f">'  # noqa: RUF001
        '<｜DSML｜parameter name="a" string="true">x < 1</｜DSML｜parameter>'  # noqa: RUF001
        '</｜DSML｜invoke><｜DSML｜invoke name="g"></｜DSML｜invoke>'  # noqa: RUF001
    ),
    "glm": (
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x < 1</arg_value>\n</tool_call>\n"
        "<tool_call>g\n</tool_call>"
    ),
    "glm, close": (
        "<tool_call>f<arg_key>a</arg_key><arg_value>x < 1</arg_value></tool_call>"
        "<tool_call>g</tool_call>"
    ),
}


@pytest.mark.req("parsing.formats", "T-29")
@pytest.mark.parametrize("reply", DATA.values(), ids=DATA)
def test_data_of_every_format_gives_its_calls_in_order(reply: object) -> None:
    before = copy.deepcopy(reply)
    assert shown(reply) == TWO
    assert reply == before


@pytest.mark.req("parsing.formats", "T-29")
@pytest.mark.parametrize("reply", TEXTS.values(), ids=TEXTS)
def test_text_of_every_form_gives_its_calls_in_order(reply: str) -> None:
    assert shown(reply) == TWO
    assert shown(reply.encode()) == TWO
    assert shown(LLMResponse(reply)) == TWO
    assert shown({"role": "assistant", "content": reply}) == TWO
    assert shown({"choices": [{"message": {"content": reply}}]}) == TWO
    assert shown([{"type": "text", "text": reply}]) == TWO
    assert shown(f"<think>{reply}\n</think>\n{reply}") == TWO


@pytest.mark.req("parsing.formats", "T-29")
@pytest.mark.parametrize("reply", OF_TEXTS.values(), ids=OF_TEXTS)
def test_text_between_tags_arrives_as_it_is(reply: str) -> None:
    expected: Shown = [("f", {"a": "x < 1"}), ("g", {})]
    assert shown(reply) == expected
    assert shown({"choices": [{"message": {"content": reply}}]}) == expected


@pytest.mark.req("parsing.formats")
def test_one_call_alone_is_found() -> None:
    for reply in (
        ToolCall("1", "f", {"a": 1}),
        {"tool": "f", "arguments": {"a": 1}, "note": "keys of one's own"},
        {"name": "f", "arguments": '{"a": 1}'},
        {"function_call": {"name": "f", "arguments": '{"a": 1}'}},
        {"functionCall": {"name": "f", "args": {"a": 1}}},
        '{"function_call": {"name": "f", "arguments": "{\\"a\\": 1}"}}',
        'So: {"function_call": {"name": "f", "arguments": {"a": 1}}}.',
        '{"tool": "f", "arguments": {"a": 1}, "thought": "why"}',
    ):
        assert shown(reply) == ONE


@pytest.mark.req("parsing.formats")
def test_answers_of_other_libraries_are_read_by_their_fields() -> None:
    function = SimpleNamespace(name="f", arguments='{"a": 1}')
    call = SimpleNamespace(id="x", type="function", function=function)
    message = SimpleNamespace(role="assistant", content=None, tool_calls=[call])
    chat = SimpleNamespace(choices=[SimpleNamespace(message=message)])
    block = SimpleNamespace(type="tool_use", id="x", name="f", input={"a": 1})
    blocks = SimpleNamespace(content=[block], stop_reason="tool_use")

    class Model:
        def model_dump(self) -> dict[str, Any]:
            return {"tool_calls": [chat_call("f", '{"a": 1}')]}

    for reply in (chat, message, [call], [block], blocks, Model(), [Model()]):
        assert shown(reply) == ONE
    assert parse_calls(chat).calls[0].id == "x"


@pytest.mark.req("parsing.formats")
def test_calls_that_are_calls_already_stay_the_same_objects() -> None:
    call = ToolCall("1", "f", {"a": 1}, namespace="n", idempotency_key="k")
    problem = CallProblem(call_id="2", name="g", message="no", index=1)
    assert parse_calls([call]).calls[0] is call
    assert parse_calls(call).calls == (call,)
    reply = LLMResponse("", (call,), problems=(problem,))
    assert parse_calls(reply) == ParsedCalls((call,), (problem,))
    found = parse_calls([call, {"tool": "g"}])
    assert found.calls[0] == call
    assert parse_calls(ParsedCalls((call,))) == ParsedCalls((call,))


@pytest.mark.req("parsing.formats")
def test_nothing_is_found_in_nothing() -> None:
    empty: list[object] = [
        None,
        "",
        " ",
        b"",
        [],
        (),
        {},
        "[]",
        "{}",
        "null",
        "Hi",
        [[]],
    ]
    for reply in empty:
        assert parse_calls(reply) == ParsedCalls()
    assert not parse_calls("")
    for wrong in (5, 1.5, object(), True, ToolCall, {1, 2}):
        with pytest.raises(TypeError, match="a reply must be"):
            parse_calls(wrong)


@pytest.mark.req("parsing.formats")
def test_namespace_and_key_of_a_call_are_kept() -> None:
    data = {"tool": "f", "namespace": "n", "idempotency_key": "k", "arguments": {}}
    tag = """<tool name="f" namespace="n" idempotency_key="k" id="i" args='{}'/>"""
    for reply in (data, [data], json.dumps(data), {"tool_calls": [data]}, tag):
        (call,) = parse_calls(reply).calls
        assert (call.namespace, call.idempotency_key) == ("n", "k")
    assert parse_calls(tag).calls[0].id == "i"
    (problem,) = parse_calls({**data, "namespace": 5}).problems
    assert "namespace" in problem.message


@pytest.mark.req("parsing.formats")
def test_streamed_events_are_put_together() -> None:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"object": "chat.completion.chunk", "choices": [choice]}

    def piece(index: int, text: str, name: str | None = None) -> dict[str, Any]:
        function = {"arguments": text} | ({"name": name} if name else {})
        head = {"id": f"c{index}"} if name else {}
        return {"index": index, **head, "function": function}

    chat = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"tool_calls": [piece(1, '{"a"', "f")]}),
        chunk({"tool_calls": [piece(3, "", "g")]}),
        chunk({"tool_calls": [piece(1, ": 1}")]}),
        chunk({}, "tool_calls"),
    ]
    assert shown(chat) == TWO
    assert [call.id for call in parse_calls(chat).calls] == ["c1", "c3"]
    assert shown([piece(0, '{"a"', "f"), piece(0, ": 1}"), piece(1, "", "g")]) == TWO
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {}}]
    for index, (name, texts) in enumerate((("f", ['{"a', '": 1', "}"]), ("g", []))):
        block = {"type": "tool_use", "id": f"t{index}", "name": name, "input": {}}
        at: dict[str, Any] = {"index": index}
        events.append({"type": "content_block_start", **at, "content_block": block})
        for text in texts:
            delta = {"type": "input_json_delta", "partial_json": text}
            events.append({"type": "content_block_delta", **at, "delta": delta})
        events.append({"type": "content_block_stop", **at})
    assert shown(events) == TWO
    items: list[dict[str, Any]] = []
    for index, (name, text) in enumerate((("f", '{"a": 1}'), ("g", ""))):
        item = {"type": "function_call", "call_id": f"r{index}", "name": name}
        at = {"output_index": index}
        added = {"type": "response.output_item.added", **at, "item": item}
        delta = {
            "type": "response.function_call_arguments.delta",
            **at,
            "delta": text,
        }
        done = {"type": "response.output_item.done", **at}
        whole = {**item, "arguments": text}
        items += [added, delta, {**done, "item": whole}]
    assert shown(items) == TWO
    spoken = [
        chunk({"content": '<tool name="f" '}),
        chunk({"content": "args='{\"a\": 1}'/>"}),
    ]
    assert shown(spoken) == ONE


@pytest.mark.req("parsing.no-guess")
def test_a_stream_that_breaks_off_gives_no_guessed_arguments() -> None:
    start = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
    half = {"index": 0, "function": {"arguments": '{"a": '}}
    for pieces in ([start], [start, half]):
        chunks = [{"choices": [{"delta": {"tool_calls": [item]}}]} for item in pieces]
        (problem,) = parse_calls(chunks).problems
        assert (problem.call_id, problem.name) == ("c", "f")
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    event = {"type": "content_block_start", "index": 0, "content_block": block}
    (problem,) = parse_calls([event]).problems
    assert problem.call_id == "t"


@pytest.mark.req("T-29")
@pytest.mark.parametrize(
    ("tag", "arguments"),
    [
        (r'<tool name="f" args="{\"q\": \"é漢😀\"}"/>', {"q": "é漢😀"}),
        ("""<tool name="f" args='{"q": "a'/>b"}'/>""", {"q": "a'/>b"}),
        ("""<tool name="f" args='{"q": "it's"}'/>""", {"q": "it's"}),
        ("""<tool name="f" args='{"q": "</tool>"}'/>""", {"q": "</tool>"}),
        ('<tool name="f">{"q": "a</tool>b"}</tool>', {"q": "a</tool>b"}),
        (
            """<tool name="f" args='{"q": "<tool name=\\"g\\"/>"}'/>""",
            {"q": '<tool name="g"/>'},
        ),
        (
            "<tool name='f' args='{&quot;q&quot;: &quot;x &amp;amp; &lt;y&gt; &#39;&quot;}'/>",
            {"q": "x &amp; <y> '"},
        ),
        ("""<tool name="f" args='{"q": "a &lt; b"}'/>""", {"q": "a < b"}),
        (
            """<tool name="f" args='{"q": "<b>a &lt; b</b>"}'/>""",
            {"q": "<b>a &lt; b</b>"},
        ),
        ("""<tool name="f" args='{"q": "?a=1&copy=2"}'/>""", {"q": "?a=1&copy=2"}),
        (r"""<tool name="f" args='{"q": "a\\nb\n"}'/>""", {"q": "a\\nb\n"}),
        ("""<tool name="f" args='{"q": "\\u00e9"}'/>""", {"q": "é"}),
        ("""<tool name="f" args='"{\\"q\\": 1}"'/>""", {"q": 1}),
    ],
)
def test_arguments_of_a_tag_arrive_as_they_were_written(
    tag: str, arguments: dict[str, Any]
) -> None:
    assert shown(tag) == [("f", arguments)]


@pytest.mark.req("T-29")
def test_parameters_in_tags_are_texts() -> None:
    text = (
        "<tool_call>\n<function=f>\n<parameter=code>\nif a:\n  </parameter> b\n"
        "</parameter>\n<parameter=n>5</parameter>\n</function>\n</tool_call>"
    )
    assert shown(text) == [("f", {"code": "if a:\n  </parameter> b", "n": "5"})]


@pytest.mark.req("T-29")
def test_equal_calls_are_two_calls() -> None:
    for reply in (
        """<tool name="f" args='{"a": 1}'/>""" * 2,
        '{"name": "f", "arguments": {"a": 1}}\n' * 2,
        [{"tool": "f", "arguments": {"a": 1}}] * 2,
        json.dumps([{"tool": "f", "arguments": {"a": 1}}] * 2),
    ):
        found = parse_calls(reply)
        assert shown(reply) == ONE * 2
        assert len({call.id for call in found.calls}) == 2


@pytest.mark.req("TC-01")
def test_empty_arguments_are_none() -> None:
    """TC-01: no argument is an empty object, however it is written."""
    written: list[object] = ["", " ", None, "{}", {}]
    for given in written:
        assert shown([chat_call("f", given)]) == [("f", {})]
    assert shown({"function_call": {"name": "f"}}) == [("f", {})]


@pytest.mark.req("TC-02")
def test_a_truncated_call_costs_no_other() -> None:
    """TC-02: its problem has the id, the name, the place and a part of the text."""
    raw = '{"path": "/srv/a.txt", "body": "half a sen' + "x" * 2000
    calls = [chat_call("a", "{}"), chat_call("b", raw), chat_call("c", '{"x": 1}')]
    for reply in (calls, {"tool_calls": calls}, json.dumps({"tool_calls": calls})):
        found = parse_calls(reply)
        assert [call.name for call in found.calls] == ["a", "c"]
        (problem,) = found.problems
        assert (problem.call_id, problem.name, problem.index) == ("id-b", "b", 1)
        assert problem.raw == raw[:800]
        assert problem.length == len(raw)
        assert problem.position == raw.index('"half')
        assert found.entries == (found.calls[0], problem, found.calls[1])
        assert len(found) == 3


@pytest.mark.req("TC-03", "parsing.no-guess")
@pytest.mark.parametrize(
    "arguments",
    ['{"scope": "tmp",, }', "[1]", "5", "null", '"x"', "{'a': 1}", '{"a": 1e999}',
     '{"a": NaN}', '{"n": ' + "9" * 5000 + "}", '{"a": ' + "[" * 2000, "{} {}"],
)  # fmt: skip
def test_unreadable_arguments_are_never_no_arguments(arguments: str) -> None:
    """TC-03: falling back to `{}` would run the tool with its defaults."""
    replies: list[object] = [
        [chat_call("purge", arguments)],
        {"name": "purge", "arguments": arguments},
        f"<tool name='purge' args='{arguments}'/>",
        f'<tool name="purge">{arguments}</tool>',
        f"<function=purge>{arguments}</function>",
    ]
    if arguments.startswith("{") and arguments != "{} {}":
        replies += [
            f'{{"name": "purge", "arguments": {arguments}}}',
            f'<tool_call>{{"name": "purge", "arguments": {arguments}}}</tool_call>',
            f'[TOOL_CALLS]purge[ARGS]{{"a": {arguments}',
        ]
    for reply in replies:
        found = parse_calls(reply)
        assert not found.calls
        assert "purge" in {problem.name for problem in found.problems}, reply


@pytest.mark.req("TC-05")
def test_a_doubled_brace_is_a_problem() -> None:
    """TC-05: never a crash, never lost."""
    (problem,) = parse_calls([chat_call("f", '{"{"ids": [4, 5]}')]).problems
    assert problem.raw == '{"{"ids": [4, 5]}'


@pytest.mark.req("TC-08")
def test_an_object_encoded_twice_is_opened() -> None:
    """TC-08: decoding stops at the object."""
    twice = json.dumps(json.dumps({"city": "Oslo"}))
    assert shown([chat_call("f", twice)]) == [("f", {"city": "Oslo"})]


@pytest.mark.req("TC-10")
def test_text_that_looks_like_json_stays_text() -> None:
    """TC-10: every character of it."""
    for body in ('{"a": 1}', "42", "true", "<tool name='x'/>", "<think>"):
        arguments = {"body": body}
        text = json.dumps(arguments)
        assert shown([chat_call("save", text)]) == [("save", arguments)]
        assert shown(json.dumps({"name": "save", "arguments": arguments})) == [
            ("save", arguments)
        ]
        assert shown(
            f'<tool_call>{{"name": "save", "arguments": {text}}}</tool_call>'
        ) == [("save", arguments)]
        assert shown(f"<function=save>{text}</function>") == [("save", arguments)]


@pytest.mark.req("TC-12")
def test_of_two_equal_ids_the_second_is_renamed() -> None:
    """TC-12: the first keeps its id; the names are stable."""
    calls = [chat_call("f", {"n": n}, id="fn:301") for n in range(3)]
    other = [ToolCall("fn:301", "f", {"n": n}) for n in range(3)]
    for reply in (calls, json.dumps(calls), {"tool_calls": calls}, other):
        found = parse_calls(reply)
        ids = [call.id for call in found.calls]
        assert ids == ["fn:301", "fn:301-2", "fn:301-3"]
        assert [call.arguments["n"] for call in found.calls] == [0, 1, 2]


@pytest.mark.req("TC-14")
def test_a_missing_id_is_made() -> None:
    """TC-14: null, empty and absent."""
    calls = [chat_call("f", "{}", id=given) for given in (None, "", "kept", 7)]
    del calls[1]["id"]
    ids = [call.id for call in parse_calls(calls).calls]
    assert ids[2:] == ["kept", "7"]
    assert all(ids)
    assert len(set(ids)) == 4


@pytest.mark.req("TC-16")
def test_calls_count_whatever_the_finish_reason() -> None:
    """TC-16: except for what a limit cut off."""
    message = {"content": "let me look", "tool_calls": CALLS}
    for reason in ("stop", None, "other"):
        choice = {"message": message, "finish_reason": reason}
        assert shown({"choices": [choice]}) == TWO
    choice = {"message": message, "finish_reason": "length"}
    found = parse_calls({"choices": [choice]})
    assert [call.name for call in found.calls] == ["f"]
    assert "cut off" in found.problems[0].message
    cut = {"content": BLOCKS, "stop_reason": "max_tokens"}
    assert [call.name for call in parse_calls(cut).calls] == ["f"]


@pytest.mark.req("TC-17")
def test_a_reply_that_promises_calls_and_has_none_gives_nothing() -> None:
    """TC-17."""
    message = {"content": "", "tool_calls": []}
    choice = {"message": message, "finish_reason": "tool_calls"}
    assert parse_calls({"choices": [choice]}) == ParsedCalls()


@pytest.mark.req("TC-20")
@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "search", "arguments": {"q": "tide"}',
        '<tool_call>{"name": "search", "argum',
        '<tool name="search" args=\'{"q": "tide"}',
        '<tool name="search" args=\'{"q": "tide"}\'',
        '<tool name="search">{"q": "tide"}',
        '<function=search>{"q": "tide"',
        "<function=search>\n<parameter=q>\ntide",
        "<function=search>\n<parameter=q>\ntide\n</parameter>\n",
        '[TOOL_CALLS] [{"name": "search", "arguments": {"q": "tide"',
        '[TOOL_CALLS]search[ARGS]{"q": "tide"',
        '<|python_tag|>{"name": "search", "parameters": {"q": "tide"',
        "<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{",
        '<|python_tag|>[search(q="tide", n=[1, ',
        '<|python_tag|>[search(q="tide"',
        "<|python_start|>[search(q='tide",
        '<|python_tag|>search.call(q="tide',
        '<|channel|>commentary to=functions.search<|message|>{"q": "tide"',
        "<|channel|>commentary to=functions.search<|message|>",
        '<invoke name="search"><parameter name="q">tide',
        '<invoke name="search"><parameter name="q">tide</parameter>',
        '<invoke name="search">',
        "<tool_call>search<arg_key>q</arg_key><arg_value>tide",
        "<tool_call>search<arg_key>q</arg_key><arg_value>tide</arg_value>",
        '{"tool_calls": [{"id": "x", "function": {"name": "search", "arguments": "{',
        'Sure. {"name": "search", "arguments": {"q": "tide"',
    ],
)
def test_an_envelope_that_never_ends_is_a_problem(text: str) -> None:
    """TC-20: the model is told, by name."""
    found = parse_calls(text)
    assert not found.calls
    (problem,) = found.problems
    assert problem.name == "search"
    assert problem.message


@pytest.mark.req("parsing.no-guess")
@pytest.mark.parametrize(
    "reply",
    [
        '{"name": "Bob", "age": 3}',
        '{"name": "Bob"}',
        '{"users": [{"name": "Bob", "input": {}}]}',
        '{"a": {"tool": "x", "arguments": {}}}',
        "[1, 2, 3]",
        '["<tool name=\'x\'/>"]',
        {"name": "f", "description": "d", "parameters": {"type": "object"}},
        {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}},
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "description": "d"}},
        {"role": "user", "content": "<tool name='x'/>"},
        {"role": "tool", "content": '{"tool": "x"}'},
        {"content": '{"tool": "x"}'},
        [{"role": "assistant", "tool_calls": CALLS}, {"role": "tool", "content": "x"}],
        [ITEMS[1], {"type": "function_call_output", "call_id": "c1", "output": "x"}],
        {"functionResponse": {"name": "f", "response": {}}},
        "<think><tool name='x'/></think> No.",
        "<tool name='x'/> I think. </think> No.",
        "<think> {\"tool\": \"x\"} never closed",
        "Write <tool_call>{...}</tool_call> to call.",
        "<tool_call> opens an envelope",
        "Use the <tool> tag, or <tool name> or <toolbox name='x'/>.",
        '<tool class="a">x</tool>',
        "[TOOL_CALLS] is a word. <function=f> too.",
        'def f(): return {"name": x, "arguments": y}',
        "[f(a=1), g()]",
        "<|python_tag|>print('x')\nf(a=1)",
        "<|python_tag|>subprocess.call(['rm'])",
        "<|python_tag|>for x in y: f(a=x)",
        "<|python_tag|> begins a program, <|python_start|> too",
        '<invoke name="f"> runs a tool',
        "<tool_call>f runs a tool, <tool_call>f(a=1)</tool_call> too",
        '<|channel|>analysis<|message|>{"tool": "x"}<|end|><|channel|>final<|message|>No.',
        '<|start|>functions.f to=assistant<|channel|>commentary<|message|>{"tool": "x"}<|end|>',
        '<|start|>user<|message|><tool name="x"/><|end|>',
        '<|channel|>commentary to=user<|message|>{"a": "x"}',
    ],
)  # fmt: skip
def test_what_is_no_call_is_none(reply: object) -> None:
    assert parse_calls(reply) == ParsedCalls()


@pytest.mark.req("T-29", "parsing.no-guess")
@pytest.mark.parametrize(
    "text",
    [
        """<tool name="a" args='{"x": 1}'/><tool name="b" args='{"x": }'/><tool name="c" args='{}'/>""",
        """<tool name="a" args='{}'/><tool name="b" args='{"x": 1 <tool name="c"/>""",
        '<tool name="a"/><tool name="b">{"x": <tool name="c">{}</tool>',
        """<tool name="a"/><tool name="b" args='{"x": 1 <tool name="c" args='{}'/>""",
        '<tool_call>{"name":"a","arguments":{}}</tool_call><tool_call>{"name":"b","arguments":{}}} x</tool_call><tool_call>{"name":"c","arguments":{}}</tool_call>',
        '[{"name":"a","arguments":{}},{"name":"b","arguments":{"x":}},{"name":"c","arguments":{}}]',
        '{"tool_calls":[{"tool":"a","arguments":{}},{"tool":"b","arguments":{"x":},{"tool":"c","arguments":{}}]}',
        '{"name":"a","arguments":{}}\n{"name":"b","arguments":{"x": "y}}\n{"name":"c","arguments":{}}',
        '<tool_call>{"name":"a","arguments":{}}</tool_call><tool_call>{"name":"b","arguments":{"x":]}}</tool_call><tool_call>{"name":"c","arguments":{}}</tool_call>',
        '<tool_call>{"name":"a","arguments":{}}</tool_call><tool_call>{"name":"b","arguments":{"x" <tool_call>{"name":"c","arguments":{}}</tool_call>',
        '<function=a>{}</function><function=b>{"x": </function><function=c>{}</function>',
        '[TOOL_CALLS] [{"name":"a","arguments":{}},{"name":"b","arguments":{"x":}},{"name":"c","arguments":{}}]',
        '[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[ARGS]{"x":[TOOL_CALLS]c[ARGS]{}',
        "<|python_tag|>[a(), b(x=oops), c()]",
        "<|python_tag|>[a(), b(f(x='), c(') + [1]), c()]",
        "<|python_tag|>[a(), b('x'), c()]<|eom_id|>",
        "<|python_tag|>[a(), b(x=" + "(" * 3000 + ")" * 3000 + "), c()]",
        "<|python_tag|>[a()]<|eom_id|><|python_tag|>[b(x=<|eom_id|><|python_tag|>[c()]",
        "<|channel|>c to=a<|message|>{}<|call|><|channel|>c to=b<|message|>{x}<|call|><|channel|>c to=c<|message|>{}<|call|>",
        "<function=a></function><function=b><parameter=x>1</parameter><parameter=x>2</parameter></function><function=c></function>",
        "<function=a></function><function=b><parameter=x>1\n<function=c></function>",
        '<invoke name="a"></invoke><invoke name="b"><parameter name="x">1</invoke><invoke name="c"></invoke>',
        '<invoke name="a"></invoke><invoke name="b"><parameter name="x" string="false">x</parameter></invoke><invoke name="c"></invoke>',
        "<tool_call>a</tool_call><tool_call>b<arg_key>x</arg_key><arg_value>1 <tool_call>c</tool_call>",
        '[{"name":"a","arguments":{}},{"name":"b","arguments":{"x":' + "[" * 3000 + "]" * 3000 + '}},{"name":"c","arguments":{}}]',
    ],
)  # fmt: skip
def test_siblings_of_a_broken_call_survive(text: str) -> None:
    found = parse_calls(text)
    assert [call.name for call in found.calls] == ["a", "c"]
    assert [(problem.name, problem.index) for problem in found.problems] == [("b", 1)]
    assert found.problems[0].to_observation()


@pytest.mark.req("parsing.no-guess")
def test_entries_that_are_no_calls_are_reported_in_their_places() -> None:
    reply = {"tool_calls": [5, chat_call("f", "{}"), {}, None, {"function": {}}]}
    found = parse_calls(reply)
    assert [call.name for call in found.calls] == ["f"]
    assert [problem.index for problem in found.problems] == [0, 2, 3, 4]
    found = parse_calls([{"tool": "a"}, 5, {"tool": ""}, {"x": 1}, {"tool": "b"}])
    assert [call.name for call in found.calls] == ["a", "b"]
    assert [problem.index for problem in found.problems] == [1, 2, 3]
    assert parse_calls({"tool_calls": "x"}).problems


@pytest.mark.req("parsing.no-guess")
def test_bytes_that_are_no_text_cost_only_the_call_that_holds_them() -> None:
    good = b"<tool name='f' args='{\"q\": \"ok\"}'/>"
    found = parse_calls(good + b"<tool name='g' args='{\"q\": \"\xff\"}'/>" + b"\xfe")
    assert [call.name for call in found.calls] == ["f"]
    assert [(p.name, p.index) for p in found.problems] == [("g", 1)]
