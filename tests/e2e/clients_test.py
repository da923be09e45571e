#!/usr/bin/env python3
"""The openai and anthropic packages as clients of `k3 serve` (must not need a network): clients_test.py K3 MODEL

Chat, streaming, tools over several turns, structured output, log probabilities, n = 2, cancellation, errors. The model is
small, so what is checked is form: that the clients accept what comes, and that streams and whole answers agree.
"""
import json
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
from serve_process import ServeProcess  # noqa: E402

try:
    import anthropic
    import openai
except ImportError as error:
    print(f"skipped: {error} (make test installs the packages)")
    sys.exit(77)

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
TOOL = {"type": "function", "function": {"name": "tide_at", "description": "High tide for a port.", "parameters": {
    "type": "object", "properties": {"port": {"type": "string"}, "days": {"type": "integer"}}, "required": ["port"]}}}
OFF = {"thinking": {"type": "disabled"}}


def serve(*options):
    return ServeProcess(PROGRAM, MODEL, "-t", "1", "--ctx", "2048", *options)


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="any", max_retries=0, timeout=120)
        cls.claude = anthropic.Anthropic(base_url=cls.server.url, api_key="any", max_retries=0, timeout=120)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.claude.close()
        code = cls.server.stop()
        if code != 0:
            raise RuntimeError(f"exit code {code}:\n" + cls.server.text()[-2000:])

    def ask(self, text="What is the capital of France?", **options):
        options.setdefault("temperature", 0)
        options.setdefault("max_tokens", 24)
        options.setdefault("extra_body", OFF)
        return self.client.chat.completions.create(model=self.model, messages=[{"role": "user", "content": text}], **options)

    def test_chat(self):
        answer = self.ask()
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        self.assertIsInstance(answer.choices[0].message.content, str)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_streaming_equals_whole(self):
        whole = self.ask()
        text, finish, usage = "", None, None
        for chunk in self.ask(stream=True, stream_options={"include_usage": True}):
            if not chunk.choices:
                usage = chunk.usage
                continue
            text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(finish, whole.choices[0].finish_reason)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_thinking(self):
        answer = self.ask(extra_body={"thinking": {"type": "enabled"}})
        self.assertIsInstance(answer.choices[0].message.reasoning_content, str)

    def test_prefix_cache_is_told(self):
        text = "Count the sheep. " * 30
        self.ask(text)
        again = self.ask(text)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)

    def test_choices_differ_by_seed(self):
        answer = self.ask("Tell me a story.", n=2, seed=7, temperature=1)
        self.assertEqual([c.index for c in answer.choices], [0, 1])
        again = self.ask("Tell me a story.", n=2, seed=7, temperature=1)
        self.assertEqual(len(again.choices), 2)
        indices = {c.choices[0].index for c in self.ask("Hi", n=2, stream=True)}
        self.assertEqual(indices, {0, 1})

    def test_logprobs(self):
        answer = self.ask(logprobs=True, top_logprobs=3)
        entries = answer.choices[0].logprobs.content
        self.assertTrue(entries)
        for entry in entries:
            self.assertLessEqual(entry.logprob, 0)
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertGreaterEqual(entry.top_logprobs[0].logprob, entry.top_logprobs[2].logprob)
        self.assertEqual(b"".join(bytes(e.bytes) for e in entries).decode(), answer.choices[0].message.content)

    def test_tools_over_several_turns(self):
        messages = [{"role": "user", "content": "High tide in Brest?"}]
        for turn in range(3):
            answer = self.client.chat.completions.create(model=self.model, messages=messages, tools=[TOOL], max_tokens=64,
                                                         temperature=0, extra_body=OFF)
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or []:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "12:40"})
            if not message.tool_calls:  # a small model may not call: the client does as if it had
                messages[-1] = {"role": "assistant", "content": None, "tool_calls": [
                    {"id": f"tide_at_{turn}", "type": "function", "function": {"name": "tide_at", "arguments": '{"port": "Brest"}'}}]}
                messages.append({"role": "tool", "tool_call_id": f"tide_at_{turn}", "content": "12:40"})
        self.assertGreaterEqual(len(messages), 7)

    def constrained(self, **options):
        try:
            return self.ask(max_tokens=200, **options)
        except openai.APIStatusError as error:
            if error.status_code == 501:
                self.skipTest("constrained output is not part of this build")
            raise

    def test_required_tool(self):
        answer = self.constrained(tools=[TOOL], tool_choice="required")
        if answer.choices[0].finish_reason != "length":
            call = answer.choices[0].message.tool_calls[0]
            self.assertEqual(call.function.name, "tide_at")
            self.assertIn("port", json.loads(call.function.arguments))

    def test_structured_output(self):
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
        answer = self.constrained(response_format={"type": "json_schema", "json_schema": {"name": "flag", "strict": True, "schema": schema}})
        if answer.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(answer.choices[0].message.content)["ok"], bool)

    def test_cancellation(self):
        before = self.server.gauge("k3:requests_cancelled_total")
        stream = self.ask("Tell me a very long story.", stream=True, max_tokens=1500, extra_body={**OFF, "ignore_eos": True})
        next(iter(stream))
        stream.close()
        for _ in range(200):
            if self.server.gauge("k3:sequences_running") == 0 and self.server.gauge("k3:requests_cancelled_total") == before + 1:
                break
            time.sleep(0.05)
        self.assertEqual(self.server.gauge("k3:requests_cancelled_total"), before + 1)
        self.assertEqual(self.server.gauge("k3:sequences_running"), 0)

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(openai.BadRequestError):
            self.ask(temperature=9)
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="none", messages=[{"role": "user", "content": "x"}])
        with self.assertRaises(anthropic.BadRequestError):
            self.claude.messages.create(model=self.model, max_tokens=5, messages=[{"role": "user", "content": "x"}],
                                        extra_body={"temperature": 9})
        with self.assertRaises(anthropic.NotFoundError):
            self.claude.messages.create(model="none", max_tokens=5, messages=[{"role": "user", "content": "x"}])

    def test_completions_with_grammars(self):
        def text(**extra):
            answer = self.client.completions.create(model=self.model, prompt="Answer: ", max_tokens=60, temperature=1, seed=4,
                                                    extra_body=extra)
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            return answer.choices[0].text
        self.assertRegex(text(structured_outputs={"regex": "[a-c]{3}-[0-9]{2}"}), r"\A[a-c]{3}-[0-9]{2}\Z")
        self.assertIn(text(structured_outputs={"choice": ["tide \\ \"", "ebb"]}), ["tide \\ \"", "ebb"])
        self.assertIn(text(grammar='root ::= "up" | "down"'), ["up", "down"])
        value = json.loads(text(guided_json={"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
                                             "additionalProperties": False}))
        self.assertIsInstance(value["ok"], bool)
        for bad in ({"guided_regex": "(?=x)"}, {"grammar": "x"}, {"guided_regex": "a", "grammar": 'root ::= "a"'},
                    {"structured_outputs": {"choice": []}}, {"guided_json": {"not": {}}}):
            with self.assertRaises(openai.BadRequestError):
                text(**bad)

    def test_text_completion(self):
        answer = self.client.completions.create(model=self.model, prompt="It was a dark", max_tokens=8, temperature=0, logprobs=2)
        chunks = self.client.completions.create(model=self.model, prompt="It was a dark", max_tokens=8, temperature=0, stream=True)
        self.assertEqual("".join(c.choices[0].text for c in chunks), answer.choices[0].text)
        self.assertTrue(answer.choices[0].logprobs.tokens)

    def test_responses(self):
        answer = self.client.responses.create(model=self.model, input="Say hello.", max_output_tokens=16, temperature=0)
        self.assertIn(answer.status, ("completed", "incomplete"))
        with self.client.responses.stream(model=self.model, input="Say hello.", max_output_tokens=16, temperature=0) as stream:
            kinds = [event.type for event in stream]
        self.assertEqual(kinds[0], "response.created")
        self.assertIn(kinds[-1], ("response.completed", "response.incomplete"))

    def test_anthropic(self):
        options = dict(model=self.model, max_tokens=24, system="Be brief.", extra_body={"temperature": 0},
                       messages=[{"role": "user", "content": "What is the capital of France?"}])
        answer = self.claude.messages.create(**options)
        self.assertEqual(answer.type, "message")
        with self.claude.messages.stream(**options) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, "".join(block.text for block in answer.content if block.type == "text"))
        self.assertEqual(final.stop_reason, answer.stop_reason)
        counted = self.claude.messages.count_tokens(model=self.model, system="Be brief.", messages=options["messages"])
        self.assertEqual(counted.input_tokens, answer.usage.input_tokens + answer.usage.cache_read_input_tokens)

    def test_anthropic_tools_and_thinking(self):
        tool = {"name": "tide_at", "input_schema": TOOL["function"]["parameters"]}
        answer = self.claude.messages.create(model=self.model, max_tokens=64, tools=[tool], thinking={"type": "enabled", "budget_tokens": 1024},
                                             messages=[{"role": "user", "content": "High tide in Brest?"},
                                                       {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "tide_at", "input": {"port": "Brest"}}]},
                                                       {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "12:40"}]}])
        self.assertIn(answer.stop_reason, ("end_turn", "max_tokens", "tool_use"))

    def test_the_log_has_no_prompt(self):
        self.ask("A very secret question.")
        self.assertNotIn("secret", self.server.text())


class Stopping(unittest.TestCase):
    def test_sigterm_lets_a_stream_finish(self):
        server = serve("--quiet")
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
        model = client.models.list().data[0].id
        stream = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}], stream=True, max_tokens=40,
                                                extra_body={**OFF, "ignore_eos": True})
        frames = iter(stream)
        next(frames)
        server.process.terminate()
        finish = [c.choices[0].finish_reason for c in frames][-1]
        self.assertEqual(finish, "length")
        self.assertEqual(server.wait(), 0)
        client.close()

    def test_the_limit_cuts_off_with_a_reason(self):
        server = serve("--drain-seconds", "0.2")
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
        model = client.models.list().data[0].id
        stream = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}], stream=True, max_tokens=1900,
                                                extra_body={**OFF, "ignore_eos": True})
        frames = iter(stream)
        next(frames)
        server.process.terminate()
        reasons = [c.choices[0].finish_reason for c in frames if c.choices]
        self.assertEqual(reasons[-1], "server_interrupted")
        self.assertEqual(server.wait(), 0)
        client.close()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
