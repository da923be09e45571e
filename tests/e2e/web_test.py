#!/usr/bin/env python3
"""The built-in page of `k3 serve` in a headless Chromium: web_test.py K3 MODEL

The model of the repository answers where a server is needed (streaming, stop, cache, live panel); recorded frames stand in for
it where the text matters (reasoning, Markdown, markup in answers, errors): they replace fetch() in the page.
"""
import json
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time
import unittest
import urllib.request

try:
    from web_page import Keys, PageTest, frames
except ImportError as error:
    print(f"skipped: {error} (make test installs it)")
    sys.exit(77)
if not shutil.which("chromium") or not shutil.which("chromedriver"):
    print("skipped: no chromium or no chromedriver (tools/install_packages.sh web)")
    sys.exit(77)

PageTest.program, PageTest.model = sys.argv[1], sys.argv[2]

MARKDOWN = """Use **NumPy** and `cumsum`, *not* a loop:

```python
def mean(x, n):
    return x[n:] - x[:-n]  # <b>no markup</b>

```

## Steps ##

1. insert a *zero*
2. sum
   - once
   - over **all**
3. subtract, see `c[n:]`

   ```
   indented
   ```

* a star 2 * 3 * 4

---
Last line
and one more, **unclosed and `open"""


class Chat(PageTest):
    """Against the model."""

    def test_answer_streams_in(self):
        self.js("window.extra = {max_tokens: 100, temperature: 0}")
        self.js("""window.lengths = new Set();
          const note = () => window.lengths.add(document.querySelector('.answer')?.textContent.length);
          new MutationObserver(note).observe(document.body, {childList: true, subtree: true});""")
        self.say("Tell me a story about a ship.")
        self.settle()
        self.assertGreater(self.js("return window.lengths.size"), 3)
        for part in (r"prompt \d+ \(\d+ cached\)", r"generated \d+ tokens", r"[\d.,]+ tokens/s", r"first after [\d.]+ s"):
            self.assertRegex(self.text(".usage"), part)
        self.assertRegex(self.text("#context"), r"\d+ of 2,048 tokens of context")

    def test_second_turn_hits_the_cache(self):
        self.js("window.extra = {max_tokens: 60}")
        self.say("Count the sheep. " * 30)
        self.settle()
        self.say("Go on.")
        self.settle()
        self.assertEqual([m["role"] for m in self.js("return window.asked[1].messages")], ["user", "assistant", "user"])
        self.assertGreater(int(re.search(r"\((\d+) cached", self.text(".usage"))[1]), 0)

    def test_stop_cancels_on_the_server(self):
        bos = json.loads(pathlib.Path(self.model, "config.json").read_text())["bos_token_id"]
        never = json.dumps({str(bos + offset): -100 for offset in range(256)})  # nor does it close its answer: text goes on
        for press in (lambda: self.find("#input").send_keys(Keys.ESCAPE), lambda: self.click("#stop")):
            before = self.server.gauge("k3:requests_cancelled_total")
            self.js(f"window.extra = {{temperature: 0, ignore_eos: true, logit_bias: {never}}}")  # it does not end by itself
            self.say("Tell me a very long story.")
            self.until(lambda: len(self.text(".answer")) > 20)
            press()
            self.settle()
            self.until(lambda: self.server.gauge("k3:requests_cancelled_total") == before + 1)
            self.until(lambda: self.server.gauge("k3:sequences_running") == 0)
            self.assertEqual(self.text(".notice"), "Stopped.")
            length = len(self.text(".answer"))
            self.assertGreater(length, 20)
            self.assertRegex(self.text(".usage"), r"generated \d+ tokens")
            self.click("#new")

    def test_reasoning_of_the_model(self):
        self.click("#show-settings")
        self.find("[name=thinking]").send_keys("on")
        self.js("window.extra = {temperature: 0}")
        self.say("What is the capital of France?")
        self.until(lambda: self.text(".reasoning .text"))
        self.assertEqual(self.js("return window.asked[0].thinking"), {"type": "enabled"})
        self.settle()  # that the block is open while it grows is test_reasoning_then_answer's, with recorded frames

    def test_live_panel_moves(self):
        self.until(lambda: self.text("#m-done") not in ("", "-"))
        done, generated = int(self.text("#m-done").replace(",", "")), self.server.gauge("k3:generated_tokens_total")
        self.js("window.extra = {ignore_eos: true, max_tokens: 1500}")

        def while_answering(true):
            if not self.busy():
                self.click("#new")
                self.say("Tell me a very long story.")
            return true()

        self.until(lambda: while_answering(lambda: self.text("#m-running") == "1"))
        self.until(lambda: while_answering(lambda: float(self.text("#m-rate").replace(",", "")) > 0))
        self.until(lambda: "L" in self.js("return document.querySelector('#spark .line').getAttribute('d')"))
        self.assertRegex(self.text("#pool-mla .numbers"), r"[1-9]\d* in use")
        self.assertRegex(self.text("#pool-kda .numbers"), r"[1-9]\d* in use")
        self.assertGreater(self.js("return document.querySelector('#pool-kda .running').getBoundingClientRect().width"), 0)
        self.assertRegex(self.text("#m-pages"), r"\d+ of \d+ free")
        self.settle()
        self.until(lambda: int(self.text("#m-done").replace(",", "")) > done)
        self.assertGreaterEqual(self.server.gauge("k3:generated_tokens_total"), generated + 1500)
        limits = sum(int(self.text(f"#m-by-{kind}")) for kind in ("mla", "kda", "none"))
        self.assertGreater(limits, 0)
        self.assertRegex(self.text("#m-hit"), r"[\d.]+ % hit")


class Page(PageTest):
    """With recorded answers."""

    def test_nothing_from_elsewhere(self):
        with urllib.request.urlopen(self.server.url + "/", timeout=30) as answer:
            policy = answer.headers["Content-Security-Policy"]
            self.assertIn("default-src 'self'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(answer.headers["X-Content-Type-Options"], "nosniff")
        loaded = self.js("return performance.getEntriesByType('resource').map((e) => e.name)")
        self.assertTrue(loaded)
        self.assertEqual([name for name in loaded if not name.startswith(self.server.url + "/")], [])

    def test_everything_has_a_name(self):
        self.click("#show-settings")
        self.chat("Hi", frames({"reasoning_content": "Hm."}, {"content": "```\ncode\n```"}))
        nameless = self.js("return [...document.querySelectorAll('button, input, textarea, select')].filter((n) => "
                           "!(n.getAttribute('aria-label') || n.textContent.trim() || n.labels?.length)).map((n) => n.outerHTML)")
        self.assertEqual(nameless, [])

    def test_reasoning_then_answer(self):
        deltas = [{"reasoning_content": "First äö🙂 "}, {"reasoning_content": "second."}, {"reasoning_content": ""},
                  {"content": "Four "}, {"content": "日本."}]
        self.js("window.pause = 40")
        self.can(frames(*deltas), size=1)  # cut inside code points, too
        self.say("2 + 2?")
        self.until(lambda: self.js("return document.querySelector('.reasoning')?.open"))
        self.settle()
        self.assertEqual(self.text(".reasoning .text"), "First äö🙂 second.")
        self.assertEqual(self.text(".answer"), "Four 日本.")
        self.assertFalse(self.js("return document.querySelector('.reasoning').open"))
        self.assertRegex(self.text(".reasoning summary"), r"Thought for")
        self.assertIn("prompt 1,234 (1,024 cached)", self.text(".usage"))
        self.chat("And 3 + 3?", frames({"content": "Six"}))
        self.assertEqual(self.js("return window.asked[1].messages[1]"),
                         {"role": "assistant", "content": "Four 日本.", "reasoning_content": "First äö🙂 second."})

    def test_markup_stays_text(self):
        evil = "<img src=x onerror=\"window.hit=1\"> <script>window.hit=1</script> <svg onload=window.hit=1>"
        answer = f"{evil}\n\n# {evil}\n\n- **{evil}**\n- `{evil}`\n\n```{evil}\n{evil}\n```"
        self.chat(evil, frames({"reasoning_content": evil}, {"content": answer}))
        self.assertIn(evil, self.text(".user .text"))
        self.assertIn(evil, self.text(".reasoning .text"))
        self.assertGreaterEqual(self.text(".answer").count(evil), 5)
        self.chat("again", frames({"content": "x"}, finish=evil))
        self.can(json.dumps({"error": {"message": evil}}), status=400)
        self.say("more")
        self.until(lambda: self.find("#messages .error"))
        self.assertEqual(self.text("#messages .error .what"), evil)
        self.assertIsNone(self.js("return window.hit ?? null"))
        self.assertIsNone(self.find("#messages img, #messages script, #messages [onload]"))

    def test_markdown(self):
        html = self.module("markdown.js", """
          const d = document.createElement('div');
          new m.MarkdownView(d).update(given[0]);
          return d.innerHTML;""", MARKDOWN)
        html = re.sub(r"<button.*?</button>", "", html)
        for part in ("<strong>NumPy</strong>", "<code>cumsum</code>", "<em>not</em>", "# &lt;b&gt;no markup&lt;/b&gt;\n</code></pre>",
                     "<h3>Steps</h3>", "<li>sum<ul><li>once</li><li>over <strong>all</strong></li></ul></li>", "<code>indented</code>",
                     "<li>a star 2 * 3 * 4</li>", "<hr>", "<p>Last line\nand one more, **unclosed and `open</p>"):
            self.assertIn(part, html)

    def test_markdown_that_grows_equals_whole(self):
        seed = random.randrange(1 << 32)
        draw = random.Random(seed)
        pieces = ["```", "~~~", "``", "`", "**", "*", "- ", "1. ", "  - ", "# ", "---", "\n", "\n\n", "a", "word ", " ", "    ", "<b>", "2) "]
        texts = [MARKDOWN] + ["".join(draw.choices(pieces, k=draw.randint(1, 60))) for _ in range(150)]
        wrong = self.module("markdown.js", """
          const html = (d) => d.innerHTML;
          return given[0].filter((text) => {
            const whole = document.createElement('div'), grown = document.createElement('div');
            new m.MarkdownView(whole).update(text);
            const view = new m.MarkdownView(grown);
            for (let i = 0; i <= text.length; ++i) view.update(text.slice(0, i));
            return html(whole) !== html(grown);
          });""", texts)
        self.assertEqual(wrong, [], f"seed {seed}")

    def test_events_cut_anywhere(self):
        stream = ': note\r\ndata: {"a": 1}\r\n\r\nevent: x\ndata:two\r\ndata: lines\n\ndata: äö🙂\r\rid: 4\n\ndata: cut'
        seen = self.module("stream.js", """
          const out = new Set();
          for (let i = 0; i <= given[0].length; ++i) for (let j = i; j <= given[0].length; ++j) {
            const got = [];
            const parser = new m.SseParser((data) => got.push(data));
            for (const piece of [given[0].slice(0, i), given[0].slice(i, j), given[0].slice(j)]) parser.push(piece);
            out.add(JSON.stringify(got));
          }
          return [...out];""", stream)
        self.assertEqual([json.loads(text) for text in seen], [['{"a": 1}', "two\nlines", "äö🙂"]])

    def test_keys(self):
        self.can(frames({"content": "ok"}))
        self.find("#input").send_keys("one", Keys.SHIFT, Keys.ENTER, Keys.NULL, "two", Keys.ENTER)
        self.settle()
        self.assertEqual(self.js("return window.asked[0].messages.at(-1).content"), "one\ntwo")
        self.find("#input").send_keys("   ", Keys.ENTER)
        self.assertEqual(self.js("return window.asked.length"), 1)

    def test_sampling_controls(self):
        self.click("#show-settings")
        values = {"temperature": "0.33", "top_p": "0.8", "top_k": "40", "min_p": "0.05", "max_tokens": "77", "seed": "5"}
        for name, value in values.items():
            self.find(f"[name={name}]").send_keys(value)
        self.find("[name=stop]").send_keys("END\n###")
        self.find("[name=thinking]").send_keys("on")
        self.find("[name=effort]").send_keys("low")
        self.find("#system").send_keys("Be brief.")
        self.chat("Hi", frames({"content": "ok"}))
        asked = self.js("return window.asked[0]")
        self.assertEqual({name: asked[name] for name in values}, {name: float(value) for name, value in values.items()})
        self.assertEqual(asked["stop"], ["END", "###"])
        self.assertEqual(asked["thinking"], {"type": "enabled", "effort": "low"})
        self.assertEqual(asked["messages"][0], {"role": "system", "content": "Be brief."})
        self.open()  # the settings outlive a reload, and so does the chat
        self.assertEqual(self.find("[name=top_k]").get_property("value"), "40")
        self.assertEqual(self.text(".answer"), "ok")
        self.click("#show-settings")
        self.click("#reset")
        self.chat("Hi", frames({"content": "ok"}))
        self.assertEqual(set(self.js("return window.asked[0]")), {"model", "messages", "stream", "stream_options"})
        self.find("[name=top_p]").send_keys("3")
        self.say("Not sent")
        self.assertEqual(self.js("return window.asked.length"), 1)

    def test_the_server_takes_the_settings(self):
        self.click("#show-settings")
        values = {"temperature": "0.5", "top_p": "0.9", "top_k": "40", "min_p": "0.05", "max_tokens": "5", "seed": "5"}
        for name, value in values.items():
            self.find(f"[name={name}]").send_keys(value)
        self.find("[name=stop]").send_keys("END")
        self.find("[name=thinking]").send_keys("on")
        self.find("[name=effort]").send_keys("high")
        self.say("Hi")
        self.settle()
        self.assertIsNone(self.find("#messages .error"))
        self.assertRegex(self.text(".usage"), r"generated [1-5] tokens")

    def test_again_edit_and_new(self):
        self.chat("one", frames({"content": "first"}))
        self.can(frames({"content": "second"}))
        self.driver.find_element("xpath", "//button[normalize-space()='Again']").click()
        self.settle()
        self.assertEqual(self.text(".answer"), "second")
        self.assertEqual(len(self.driver.find_elements("css selector", ".answer")), 1)
        self.assertEqual(self.js("return window.asked[1].messages"), [{"role": "user", "content": "one"}])
        self.driver.find_element("xpath", "//button[normalize-space()='Edit']").click()
        self.find(".editing textarea").send_keys(" changed")
        self.can(frames({"content": "third"}))
        self.find(".editing textarea").send_keys(Keys.ENTER)
        self.settle()
        self.assertEqual(self.js("return window.asked[2].messages"), [{"role": "user", "content": "one changed"}])
        self.assertEqual(self.text(".answer"), "third")
        self.click("#new")
        self.assertIsNone(self.find(".answer"))
        self.chat("anew", frames({"content": "x"}))
        self.assertEqual(self.js("return window.asked[3].messages"), [{"role": "user", "content": "anew"}])

    def test_export_and_import(self):
        self.chat("one", frames({"reasoning_content": "hm"}, {"content": "first"}))
        self.click("#show-settings")
        self.find("[name=seed]").send_keys("12")
        self.js("URL.createObjectURL = (blob) => { blob.text().then((text) => { window.exported = text; }); return '#'; };")
        self.click("#export")
        text = self.until(lambda: self.js("return window.exported"))
        self.assertEqual(json.loads(text)["messages"][1]["reasoning_content"], "hm")
        self.click("#new")
        self.click("#reset")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "chat.json")

            def load(content):
                file.write_text(content)
                self.find("#file").send_keys(str(file))

            load(text)
            self.until(lambda: self.text(".answer") == "first")
            self.assertEqual(self.text(".reasoning .text"), "hm")
            self.assertEqual(self.find("[name=seed]").get_property("value"), "12")
            load('{"messages": [{"role": "wizard", "content": "x"}]}')
            self.until(lambda: self.find("#import-error").is_displayed())
            self.assertIn("wizard", self.text("#import-error"))
            self.assertEqual(self.text(".answer"), "first")
            load('[{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]}]')
            self.until(lambda: self.text(".user .text") == "hello")
            self.assertEqual(self.find("#system").get_property("value"), "S")

    def test_errors_say_what_to_do(self):
        cases = [(400, "top_p: must be at most 1", {}, "settings"),
                 (400, "the prompt is longer than the context", {}, "new chat"),
                 (404, "no such model", {}, "Reload"), (413, "too large", {}, "Shorten"), (503, "the server is stopping", {}, "stopping"),
                 (429, "the queue is full", {"Retry-After": "7"}, "in 7 s"), (500, "internal error", {}, "log")]
        for status, message, headers, advice in cases:
            with self.subTest(status=status, message=message):
                self.can(json.dumps({"error": {"message": message, "type": "x"}}), status=status, headers=headers)
                self.say("Hi")
                self.settle()
                self.assertEqual(self.text("#messages .error .what"), message)
                self.assertIn(advice, self.text("#messages .error"))
                self.click("#new")
        self.can(frames({"content": "half an ans"}, finish=None, done=False))
        self.say("Hi")
        self.settle()
        self.assertIn("connection was lost", self.text("#messages .error"))
        self.assertEqual(self.text(".answer"), "half an ans")
        self.can(frames({"content": "half"}, finish=None, done=False), lost=True)
        self.click("#messages .error button")
        self.settle()
        self.assertIn("connection was lost", self.text("#messages .error"))
        self.can(frames({"content": "whole"}))
        self.click("#messages .error button")
        self.settle()
        self.assertEqual(self.text(".answer"), "whole")
        self.chat("Hi", frames({"content": "cut"}, finish="server_interrupted", done=False))
        self.assertIn("The server stopped", self.text(".notice"))

    def test_scrolls_only_for_a_reader_at_the_end(self):
        self.chat("Hi", frames({"content": "line\n\n" * 80}))
        end = "const l = document.querySelector('#log'); return l.scrollHeight - l.scrollTop - l.clientHeight"
        self.assertLess(self.js(end), 40)
        self.js("window.pause = 100")
        self.can(frames(*[{"content": f"line {i}\n\n"} for i in range(40)]), size=50)
        self.say("More")
        self.until(lambda: len(self.driver.find_elements("css selector", ".assistant:last-child p")) > 3)
        self.assertLess(self.js(end), 200)
        self.js("document.querySelector('#log').scrollTop = 100")
        self.settle()
        self.assertEqual(self.js("return document.querySelector('#log').scrollTop"), 100)
        self.assertTrue(self.find("#jump").is_displayed())
        self.click("#jump")
        self.until(lambda: self.js(end) < 40)
        self.assertFalse(self.find("#jump").is_displayed())

    def test_many_frames_few_redraws(self):
        self.js("""window.changes = 0; new MutationObserver(() => ++window.changes).observe(
          document.querySelector('#messages'), {childList: true, subtree: true});""")
        text = frames(*[{"content": f"word{i} "} for i in range(3000)])
        self.can(text, size=len(text))
        self.say("Hi")
        self.settle()
        self.assertTrue(self.text(".answer").endswith("word2999 "), self.text(".answer")[-40:])
        self.assertLess(self.js("return window.changes"), 30)

    def test_live_panel_rests(self):
        polls = lambda: self.js("return window.polls")
        self.until(lambda: polls() >= 2)
        hide = """Object.defineProperty(document, 'visibilityState', {configurable: true, value: arguments[0]});
          document.dispatchEvent(new Event('visibilitychange'));"""
        self.js(hide, "hidden")
        before = polls()
        time.sleep(2.5)
        self.assertLessEqual(polls(), before + 1)  # the one under way
        self.js(hide, "visible")
        self.until(lambda: polls() >= before + 2)
        self.js("window.metrics_fail = true")
        self.until(lambda: "again in 4 s" in self.text("#live-state"))
        self.js("window.metrics_fail = false")
        self.until(lambda: self.text("#live-state") == "")
        self.click("#live .close")
        before = polls()
        time.sleep(2.5)
        self.assertLessEqual(polls(), before + 1)

    def test_phone(self):
        for width in (390, 320):
            self.phone(width)
            self.open()
            self.assert_no_sideways_scroll("idle")
            long = MARKDOWN + "\n\n" + "x" * 300 + "\n\n```\n" + "y " * 200 + "\n```"
            self.chat("w" * 200, frames({"reasoning_content": "r" * 200}, {"content": long}))
            self.assert_no_sideways_scroll("chat")
            for name in ("live", "settings"):
                self.assertFalse(self.find("#" + name).is_displayed())
                self.click("#show-" + name)
                self.assertTrue(self.find("#" + name).is_displayed(), (width, name))
                self.assert_no_sideways_scroll(name)
            self.assertFalse(self.find("#live").is_displayed())
            self.find("#input").send_keys(Keys.ESCAPE)
            self.assertFalse(self.find("#settings").is_displayed())
            self.click("#new")

    def test_dark(self):
        brightness = lambda: sum(map(int, re.findall(r"\d+", self.js("return getComputedStyle(document.body).backgroundColor"))[:3]))
        self.assertGreater(brightness(), 600)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
        self.assertLess(brightness(), 150)
        self.click("#theme")  # light, whatever the system says
        self.assertGreater(brightness(), 600)
        self.click("#theme")
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.assertLess(brightness(), 150)
        self.open()
        self.assertLess(brightness(), 150)


class Key(PageTest):
    """A server that asks for a key."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        keys = pathlib.Path(folder.name, "keys.txt")
        keys.write_text("right-key\n")
        cls.start("--api-key-file", str(keys))

    def test_key(self):
        self.assertIn("API key", self.text("#messages .error"))
        self.until(lambda: self.text("#m-done") == "0")  # the live panel works without it
        self.find("#messages .error input").send_keys("wrong", Keys.ENTER)
        self.until(lambda: self.find("#messages .error input").get_property("value") == "")
        self.find("#messages .error input").send_keys("right-key", Keys.ENTER)
        self.until(lambda: self.text("#model"))
        self.js("window.extra = {max_tokens: 5}")
        self.say("Hi")
        self.settle()
        self.assertIsNone(self.find("#messages .error"))
        self.assertTrue(self.text(".answer"))
        self.assertEqual(self.js("return JSON.stringify(localStorage).includes('right-key')"), False)
        self.click("#show-settings")
        self.find("#key").send_keys("-changed", Keys.ENTER)
        self.say("Hi")
        self.until(lambda: self.find("#messages .error input"))
        self.find("#messages .error input").send_keys("right-key", Keys.ENTER)
        self.until(lambda: self.find("#messages .error") is None and not self.busy())
        self.assertEqual(len(self.driver.find_elements("css selector", ".answer")), 2)


del PageTest  # the loader would take it for a test
if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
