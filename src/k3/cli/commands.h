// The commands. Each prints its answer to stdout, notes to stderr, and returns a Status that becomes the exit code.
#pragma once

#include "k3/base/result.h"
#include "k3/cli/options.h"

namespace k3::cli {

Status run_command(const RunOptions& options);
Status chat_command(const ChatOptions& options);
Status inspect_command(const InspectOptions& options);
Status tokenize_command(const TokenizeOptions& options);
Status detokenize_command(const DetokenizeOptions& options);
Status render_command(const RenderOptions& options);
Status logits_command(const LogitsOptions& options);
Status perplexity_command(const PerplexityOptions& options);
Status init_command(const InitOptions& options);
Status convert_command(const ConvertOptionsCli& options);
Status bench_command(const BenchOptions& options);

// Parses the command line and runs one command; returns the exit code.
int cli_main(int argc, const char* const* argv);

}  // namespace k3::cli
