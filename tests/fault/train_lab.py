"""A small training run to do harm to: texts, tokenizer, shards and the config of a model of some ten thousand parameters."""
import hashlib
import json
import os
import shutil
import subprocess

# Every kind of layer, so that a resumed run has every kind of state to get back.
TEXT_CONFIG = dict(
    model_type="kimi_linear", hidden_size=32, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, intermediate_size=64,
    hidden_act="situ", activation_situ_beta=4.0, activation_situ_linear_beta=25.0, rms_norm_eps=1e-5, q_lora_rank=16, kv_lora_rank=16,
    qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, mla_use_nope=True, mla_use_output_gate=True, first_k_dense_replace=1,
    moe_layer_freq=1, num_experts=4, num_experts_per_token=2, num_shared_experts=1, moe_intermediate_size=32,
    routed_expert_hidden_size=32, latent_moe_use_norm=True, moe_router_activation_func="sigmoid", moe_renormalize=True,
    routed_scaling_factor=1.0, use_grouped_topk=True, num_expert_group=1, topk_group=1, attn_res_block_size=2, initializer_range=0.02,
    max_position_embeddings=4096,
    linear_attn_config=dict(num_heads=2, head_dim=16, short_conv_kernel_size=4, use_full_rank_gate=True, gate_lower_bound=-5.0,
                            full_attn_layers=[3], kda_layers=[1, 2]),
    quantization_config=dict(quant_method="compressed-tensors", format="mxfp4-pack-quantized", ignore=[], config_groups=dict(group_0=dict(
        targets=["Linear"], weights=dict(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True)))))


def default_config(vocab):
    """60 steps: plain, quantisation-aware at twice the length, chat on a schedule of its own."""
    return dict(
        model=dict(model_type="kimi_k3", text_config=dict(TEXT_CONFIG, vocab_size=vocab)), tokenizer="tokenizer", data="data", seed=3,
        phases=[
            dict(name="pretrain", steps=30, sequence_tokens=32, tokens_per_step=256, micro_batches=2,
                 sources=[dict(name="stories"), dict(name="talk", share=0.25, learn_all=True)]),
            dict(name="longer", steps=12, sequence_tokens=64, tokens_per_step=256, mxfp4_experts=True, mxfp8_activations=True,
                 sources=[dict(name="stories")]),
            dict(name="chat", steps=18, sequence_tokens=64, tokens_per_step=256, mxfp4_experts=True, new_schedule=True, learning_rate=0.5,
                 sources=[dict(name="talk")])],
        evaluate_every=10, checkpoint_every=3, sample_every=20, sample=dict(text="The cat", tokens=8))


class Lab:
    def __init__(self, binary, root):
        self.binary, self.root = os.path.abspath(binary), root
        self.write_texts()
        self.k3("train-tokenizer", "stories.txt", "talk.jsonl", "--vocab", "560", "-o", "tokenizer", check=True)
        self.k3("prepare", "stories.txt", "talk.jsonl", "--tokenizer", "tokenizer", "--holdout", "0.2", "-o", "data", check=True)
        with open(self.path("data", "manifest.json"), encoding="utf-8") as file:
            self.vocab = json.load(file)["vocab"]
        self.write_config("run.json", default_config(self.vocab))

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def write_texts(self):
        with open(self.path("stories.txt"), "w", encoding="utf-8") as stories, open(self.path("talk.jsonl"), "w", encoding="utf-8") as talk:
            for i in range(60):
                animal = ("cat", "dog", "duck")[i % 3]
                stories.write("The %s number %d went to the river and saw a fish. It was glad.\n<|endoftext|>\n" % (animal, i))
                talk.write(json.dumps(dict(messages=[dict(role="user", content="Who are you? %d" % i),
                                                     dict(role="assistant", content="I am a %s." % animal)])) + "\n")

    def write_config(self, name, config):
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump(config, file)
        return name

    def start(self, folder, *more, config="run.json", **popen):
        return subprocess.Popen([self.binary, "train", config, "-o", folder, "-t", "1", *more], cwd=self.root, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", **popen)

    def train(self, folder, *more, config="run.json", **popen):
        """-> exit code, everything that it said"""
        process = self.start(folder, *more, config=config, **popen)
        out, err = process.communicate(timeout=120)
        return process.returncode, out + err

    def k3(self, *arguments, check=False):
        done = subprocess.run([self.binary, *arguments], cwd=self.root, capture_output=True, text=True, timeout=120, check=False)
        if check and done.returncode != 0:
            raise AssertionError("k3 %s: exit code %d\n%s" % (" ".join(arguments), done.returncode, done.stderr))
        return done

    def losses(self, folder):
        """Of every step, as the log says; a step that is missing or there twice would show."""
        with open(self.path(folder, "log.jsonl"), encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        return [(r["step"], r["loss"], r["gradient_norm"]) for r in records if r["type"] == "step"]

    def exported(self, folder):
        """Name -> hash of every file of the model that the run gives."""
        shutil.rmtree(self.path("model"), ignore_errors=True)
        self.k3("export", folder, "model", check=True)
        hashes = {}
        for name in sorted(os.listdir(self.path("model"))):
            with open(self.path("model", name), "rb") as file:
                hashes[name] = hashlib.sha256(file.read()).hexdigest()
        return hashes

    def checkpoints(self, folder):
        try:
            return sorted(int(name[5:]) for name in os.listdir(self.path(folder, "checkpoints")) if name.startswith("step-"))
        except FileNotFoundError:
            return []
