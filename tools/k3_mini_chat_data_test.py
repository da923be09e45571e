#!/usr/bin/env python3
"""What k3_mini_chat_data.py makes of small texts and conversations."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import k3_mini_chat_data as data  # noqa: E402
import k3_mini_data  # noqa: E402


def conversation(question):
    return json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": "yes " * 40}]})


class Sources(unittest.TestCase):
    def test_they_are_those_of_the_first_training(self):
        sources = lambda kinds: sorted(source for some in kinds.values() for source in some)
        self.assertEqual(sources(data.FINER), sources(k3_mini_data.KINDS))


class Sample(unittest.TestCase):
    def test_parts_hold_all_of_a_document(self):
        document = "\n\n".join(f"paragraph {i} " + "x" * 900 for i in range(300))
        parts = data.parts(document)
        self.assertEqual("\n\n".join(parts), document)
        self.assertEqual(len(parts), 5)
        for part in parts:
            self.assertLess(len(part), data.PART_BYTES + 1000)

    def test_a_sample_is_of_whole_parts_in_their_order(self):
        documents = [f"document {i:03} " + "y" * 100 for i in range(200)]
        text = "".join(d + "\n<|endoftext|>\n" for d in documents)
        sampled = data.sample(text, 5000)
        found = [d.strip() for d in sampled.split("\n<|endoftext|>") if d.strip()]
        self.assertEqual(found, sorted(found))
        self.assertTrue(set(found) <= set(documents))
        self.assertEqual(len(found), 5000 // 113)
        self.assertNotEqual(found, documents[:len(found)], "chosen by hash")
        self.assertEqual(data.sample(text, 10 ** 9), text)


class Joined(unittest.TestCase):
    def test_they_are_whole_conversations_one_after_another(self):
        lines = {name: [conversation(f"{name} {i}?") for i in range(5)] for name in data.JOINED}
        lines["chat-stories"].append(conversation("long " * data.JOINED_CHARACTERS))
        made = data.joined(lines)
        self.assertEqual(made, data.joined(lines))
        self.assertEqual(len(made), data.JOINED_COUNT)
        known = {conversation(f"{name} {i}?") for name in data.JOINED for i in range(5)}
        for line in made:
            messages = json.loads(line)["messages"]
            self.assertIn(len(messages), (4, 6))
            for i in range(0, len(messages), 2):
                self.assertIn(json.dumps({"messages": messages[i:i + 2]}), known)


if __name__ == "__main__":
    unittest.main()
