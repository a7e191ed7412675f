"""The live page in a real Chromium while a very long answer comes: what it does must not grow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chromium import PROGRAM
from test_live_page_alone import ANSWER, STATUS, StandIn, chunk, step, visit

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium (Debian package chromium)"),
]

NUM_STEPS = 10_000
NUM_BARS = 400
WORDS = (".\n", "\n", "Four", " one", " two", " three")
NOW = "[...document.querySelectorAll('.bar.now')].map(bar => bar.dataset.step).join()"


async def test_ten_thousand_tokens(tmp_path: Path) -> None:
    tokens = [WORDS[number % len(WORDS)] for number in range(NUM_STEPS)]
    frames = [
        chunk(token, step(number, ["no", "nor"], 0, token)) for number, token in enumerate(tokens)
    ]
    async with visit(StandIn([*frames, "[DONE]"]), tmp_path) as page:
        await page.press("Enter")
        done = f"Done: {NUM_STEPS} tokens in {NUM_STEPS} steps, 1.00 a step"
        await page.until(f"{STATUS}.startsWith({json.dumps(done)})")
        text = "".join(tokens)
        assert await page.evaluate(ANSWER) == text

        last = NUM_STEPS - 1
        await page.until(f"{NOW} === '{last}'")
        await page.press("Escape")
        moves = (("Home", 0), ("ArrowRight", 1), ("End", last), ("ArrowLeft", last - 1))
        for key, shown in moves:
            await page.press(key)
            assert await page.evaluate(NOW) == str(shown)
            assert await page.evaluate("document.querySelectorAll('.bar').length") <= NUM_BARS
            before = text[: sum(map(len, tokens[:shown]))].replace("\n", "⏎")
            told = await page.evaluate("document.getElementById('context').firstChild.data")
            assert told == ("…" if len(before) > 60 else "") + before[-60:]

        alike = f"""(() => {{
            const box = document.getElementById("answer");
            getSelection().selectAllChildren(box);
            const copied = getSelection().toString();
            const plain = box.cloneNode(false);
            plain.textContent = {json.dumps(text)};
            const height = box.scrollHeight;
            box.replaceWith(plain);
            return [copied, height - plain.scrollHeight];
        }})()"""
        assert await page.evaluate(alike) == [text, 0], "its lines are boxes, which nobody sees"


async def test_the_end_of_the_answer_is_followed_unless_somebody_reads_above(
    tmp_path: Path,
) -> None:
    line = chunk("line\n", step(0, [], 0, "line\n"))
    async with visit(StandIn([*[line] * 100, "[DONE]"]), tmp_path) as page:
        await page.press("Enter")
        await page.until(f"{STATUS}.startsWith('Done')")
        left = "answer.box.scrollHeight - answer.box.scrollTop - answer.box.clientHeight"
        await page.until(f"steps.shown === 99 && {left} < 2")
        frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        more = "answer.add('more\\n'.repeat(20), [], 100)"
        await page.evaluate(f"{more}; {frame}")
        assert await page.evaluate(f"{left} < 2")
        await page.evaluate(f"answer.box.scrollTop = 50; {more}; {frame}")
        assert await page.evaluate("answer.box.scrollTop") == 50


async def test_a_step_costs_no_look_at_those_before(tmp_path: Path) -> None:
    looks = """(() => {
        let looks = 0;
        const step = {...STEP, get committed() { looks += 1; return ["a"]; }};
        for (let number = 0; number < 300; number += 1) {
            take({trees: [step], text: "a"});
            account(0);
        }
        return looks;
    })()""".replace("STEP", json.dumps(step(0, [], 0, "a")))
    async with visit(StandIn(), tmp_path) as page:
        assert await page.evaluate(looks) < 300 * 20
        assert await page.evaluate("steps.numTokens") == 300
