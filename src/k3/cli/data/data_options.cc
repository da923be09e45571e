#include "k3/cli/data/data_options.h"

#include <CLI/CLI.hpp>

#include "k3/cli/range.h"

namespace k3::cli {
namespace {

constexpr const char* kGroup = "Teach one";

void add_threads(CLI::App& app, int& threads) {
  app.add_option("-t,--threads", threads, "Worker threads (default: all this process may use)")->check(range(1, 1024))->type_name("N");
}

constexpr const char* kFilesHelp =
    "Text files, packed with zstd or not:\n"
    "  .txt    documents; a line <|endoftext|> ends each, a file without one is one document\n"
    "  .jsonl  a conversation a line: {\"messages\": [{\"role\": \"user\", \"content\": \"...\"},\n"
    "          {\"role\": \"assistant\", \"content\": \"...\"}]}; other fields are ignored\n\n";

void add_train_tokenizer(CLI::App& app, TrainTokenizerOptions& o, Status& status) {
  CLI::App* command = app.add_subcommand("train-tokenizer", "Learn a vocabulary from text (first step of a new model)")->group(kGroup);
  command->footer(std::string(kFilesHelp) +
                  "The vocabulary is a byte-level BPE: its first 256 ranks are the bytes, so that any text can be\n"
                  "written with it; each further rank joins the two neighbours that stand together most often\n"
                  "(equal counts: the lower left rank, then the lower right one). Text is first divided into words\n"
                  "by the split pattern of K3, and no rank crosses a word. The same files give the same ranks,\n"
                  "whatever the threads and the order.\n"
                  "OUT gets tiktoken.model, tokenizer_config.json (256 special tokens at K3's places),\n"
                  "chat_format.json and generation_config.json: the tokenizer part of a model folder.\n\n"
                  "How large? A small model spends much of itself on the vocabulary: 2,048-4,096 for about 2 M\n"
                  "parameters, 8,192-16,384 for about 50 M, more with several languages.\n\n"
                  "Examples:\n"
                  "  k3 train-tokenizer --vocab 3072 --out tokenizer data/demo/*.zst\n"
                  "  k3 train-tokenizer --vocab 16384 --out tokenizer books.txt.zst stories.txt.zst=4 talk.jsonl\n"
                  "  k3 tokenize tokenizer 'Once upon a time'     # look at it\n"
                  "Then: k3 prepare --tokenizer tokenizer ...");
  command->add_option("FILE", o.files, "Text files; FILE=4 counts the file's words four times")->required();
  command->add_option("--vocab", o.vocab, "Ids in all: ranks and 256 special tokens")
      ->required()
      ->check(range(int64_t{512}, int64_t{1} << 20))
      ->type_name("N");
  command->add_option("-o,--out", o.out, "The folder to write")->required();
  command->add_option("--least-count", o.least_count, "How often a pair must occur to become a rank (default 2)")
      ->check(range(0.001, 1e8))
      ->type_name("N");
  command->add_flag("--force", o.force, "Replace a tokenizer that is there");
  command->add_flag("--json", o.json, "Print JSON for programs");
  add_threads(*command, o.threads);
  command->callback([&o, &status] { status = train_tokenizer_command(o); });
}

void add_prepare(CLI::App& app, PrepareCliOptions& o, Status& status) {
  CLI::App* command = app.add_subcommand("prepare", "Text to shards of token ids (second step of a new model)")->group(kGroup);
  command->footer(std::string(kFilesHelp) +
                  "Each file becomes a source of its own name; `k3 train` mixes sources by weight. Documents become\n"
                  "[BOS] ids [EOS], blanks around them are dropped. Conversations are written in the chat format of\n"
                  "the tokenizer's folder, with a mask over what the assistant has to learn: its words, the close\n"
                  "tags and <|end_of_msg|>. A document that was seen before, in any file, is dropped; held-out files\n"
                  "are read first, so that nothing of theirs is trained on.\n"
                  "OUT gets shards, the tokenizer's files and, last, manifest.json: a folder that has one is whole.\n\n"
                  "Examples:\n"
                  "  k3 prepare --tokenizer tokenizer --out data --holdout 0.02 data/demo/*.zst\n"
                  "  k3 prepare --tokenizer models/k3-mini --out data books.txt.zst chat.jsonl --valid val.txt");
  command->add_option("FILE", o.files, "Text files to train on");
  command->add_option("--valid", o.valid, "A text file that is held out, to evaluate on (may be given several times)")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command->add_option("--tokenizer", o.tokenizer, "Folder of the tokenizer: of k3 train-tokenizer, or a model's")->required();
  command->add_option("-o,--out", o.out, "The folder to write")->required();
  command->add_option("--holdout", o.holdout, "Hold out this part of the documents of each FILE, like 0.02; which ones follows from their text")
      ->check(range(0.0, 0.5))
      ->type_name("PART");
  command->add_option("--shard-tokens", o.shard_tokens, "Tokens of a shard, about (default 33554432)")
      ->check(range(int64_t{1}, int64_t{1} << 34))
      ->type_name("N");
  command->add_flag("--force", o.force, "Replace prepared data that is there");
  command->add_flag("--json", o.json, "Print the manifest");
  add_threads(*command, o.threads);
  command->callback([&o, &status] { status = prepare_command(o); });
}

}  // namespace

void add_data_commands(CLI::App& app, TrainTokenizerOptions& tokenizer, PrepareCliOptions& prepare, Status& status) {
  add_train_tokenizer(app, tokenizer, status);
  add_prepare(app, prepare, status);
}

}  // namespace k3::cli
