#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cwchar>

#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/base/progress.h"
#include "k3/base/units.h"
#include "k3/base/utf8.h"
#include "k3/cli/chat_setup.h"
#include "k3/cli/commands.h"
#include "k3/cli/common.h"
#include "k3/engine/chat_session.h"
#include "k3/model/run/identity.h"

namespace k3::cli {
namespace {

std::atomic<bool> g_stop{false};

void on_interrupt(int) { g_stop = true; }

constexpr std::string_view kStateSuffix = ".k3slot";

constexpr const char* kHelp =
    "  /help            this list\n"
    "  /reset           forget the conversation\n"
    "  /system TEXT     set the system message (without TEXT: show it); the conversation is read again\n"
    "  /effort LEVEL    think off, low, high or max; the conversation is read again\n"
    "  /save FILE       write the conversation as a chat request (JSON); with a name in .k3slot also what the model has\n"
    "                   read of it, so that nothing is read again and answers go on as if never interrupted\n"
    "  /load FILE       read either back\n"
    "  /quit            leave (or Ctrl-D)\n"
    "Ctrl-C stops an answer. End a line with \\ to go on in the next one.\n";

// Line editing on a terminal; plain lines from a pipe, so that a conversation can be scripted.
class LineReader {
 public:
  LineReader() : terminal_(::isatty(STDIN_FILENO) == 1) {
    if (!terminal_) return;
    // libedit drops what the locale cannot spell; text is UTF-8 here whatever the environment says.
    if (std::setlocale(LC_CTYPE, "C.UTF-8") == nullptr) std::setlocale(LC_CTYPE, "");
    edit_ = el_init("k3", stdin, stderr, stderr);
    el_set(
        edit_, EL_PROMPT, +[](EditLine*) -> char* {
          static char prompt[] = "> ";
          return prompt;
        });
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_SIGNAL, 0);
    el_set(edit_, EL_GETCFN, read_char);
    el_set(edit_, EL_PREP_TERM, 1);
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, 500);
    history(history_, &event, H_SETUNIQUE, 1);
    el_set(edit_, EL_HIST, history, history_);
    if (const char* home = std::getenv("HOME")) file_ = join_path(home, ".k3_history");
    if (!file_.empty()) history(history_, &event, H_LOAD, file_.c_str());
    el_source(edit_, nullptr);
  }
  ~LineReader() {
    if (edit_ == nullptr) return;
    HistEvent event;
    if (!file_.empty()) history(history_, &event, H_SAVE, file_.c_str());
    history_end(history_);
    el_end(edit_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool terminal() const { return terminal_; }

  // False at the end of input. Ctrl-C at the prompt drops what was typed, continued lines too.
  bool read(std::string& line) {
    line.clear();
    std::string piece;
    for (;;) {
      const Input input = terminal_ ? edit_piece(piece) : plain_piece(piece);
      if (input == Input::end) return !line.empty();
      if (input == Input::interrupted) {
        line.clear();
        continue;
      }
      while (piece.ends_with('\n') || piece.ends_with('\r')) piece.pop_back();
      const bool more = piece.ends_with('\\');
      if (more) piece.back() = '\n';
      line += piece;
      if (!more) break;
    }
    if (terminal_ && !line.empty()) {
      HistEvent event;
      history(history_, &event, H_ENTER, line.c_str());
    }
    return true;
  }

 private:
  enum class Input { text, end, interrupted };

  static Input plain_piece(std::string& piece) {
    char* buffer = nullptr;
    size_t capacity = 0;
    const ssize_t n = ::getline(&buffer, &capacity, stdin);
    piece.assign(buffer, n > 0 ? static_cast<size_t>(n) : 0);
    std::free(buffer);
    return n > 0 ? Input::text : Input::end;
  }

  Input edit_piece(std::string& piece) {
    int count = 0;
    const char* text = el_gets(edit_, &count);
    const bool interrupted = text == nullptr && g_stop.exchange(false);
    if (interrupted) {
      el_reset(edit_);
      std::fputs("\n", stderr);
    }
    // el_gets has put the terminal back into line mode. There, keys typed during the answer would be echoed into it, and
    // a Ctrl-D among them would reach the next prompt as a strange character.
    el_set(edit_, EL_PREP_TERM, 1);
    if (interrupted) return Input::interrupted;
    if (text == nullptr || count <= 0) return Input::end;
    piece.assign(text, static_cast<size_t>(count));
    return Input::text;
  }

  // One character of stdin. Looks at g_stop ten times a second: a signal that comes just before a blocking read would not
  // end it.
  static int read_char(EditLine*, wchar_t* out) {
    std::mbstate_t state{};
    while (!g_stop) {
      pollfd wait{STDIN_FILENO, POLLIN, 0};
      if (::poll(&wait, 1, 100) <= 0) continue;
      char byte = 0;
      const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (n <= 0) return static_cast<int>(n);
      const size_t used = std::mbrtowc(out, &byte, 1, &state);
      if (used == static_cast<size_t>(-1)) state = {};  // not UTF-8: dropped
      if (used < static_cast<size_t>(-2)) return 1;     // else more bytes of the same character follow
    }
    return -1;
  }

  bool terminal_;
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
  std::string file_;
};

class Chat {
 public:
  Chat(ChatSession& session, const ChatOptions& options, GenerateOptions generation, std::string identity)
      : session_(session),
        options_(options),
        generation_(std::move(generation)),
        identity_(std::move(identity)),
        colour_(use_colour(STDOUT_FILENO)) {
    generation_.stop = &g_stop;
    first_seed_ = generation_.sampling.seed;
  }

  void answer(const std::string& line) {
    g_stop = false;
    // Each turn draws anew (asking again gives another answer), and the same --seed the same conversation.
    generation_.sampling.seed = first_seed_ + turns_++;
    bool reasoning = false, any = false;
    const auto turn = session_.send(line, generation_, options_.sampling.stop, [&](const ChatEvent& event) {
      const bool thinks = event.kind == ChatEvent::Kind::reasoning;
      if (!thinks && event.kind != ChatEvent::Kind::content) return;
      if (thinks != reasoning) {
        if (colour_) print_out(thinks ? "\x1b[2m" : "\x1b[0m");
        if (!thinks) print_out("\n\n");
        reasoning = thinks;
      }
      any = true;
      print_out(event.text);
      if (!flush_out()) g_stop = true;  // nobody can read the rest
    });
    g_stop = false;  // it was meant for this answer
    if (reasoning && colour_) print_out("\x1b[0m");
    if (any) print_out("\n");
    flush_out();
    if (!turn.ok()) {
      std::fprintf(stderr, "k3: %s\n", turn.error().message.c_str());
      return;
    }
    const GenerateResult& g = turn->generated;
    std::string text = fmt::format("[{} + {} tokens, {:.1f} tokens/s; context {} used", turn->prompt_tokens, g.ids.size(),
                                   g.decode_tokens_per_second(), session_.context_used());
    if (!turn->ended) text += fmt::format("; {}", turn->stop_string ? "stop string" : stop_reason_text(g.reason));
    note(text + "]");
    if (g.reason == StopReason::context) note("The context is full. /reset starts anew; --ctx makes it longer.");
  }

  // False to leave.
  bool command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string argument =
        space == std::string::npos
            ? ""
            : line.substr(line.find_first_not_of(' ', space) == std::string::npos ? line.size()
                                                                                  : line.find_first_not_of(' ', space));
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/help") {
      std::fputs(kHelp, stderr);
    } else if (name == "/reset") {
      session_.reset();
      note("The conversation is forgotten.");
    } else if (name == "/system") {
      system(argument);
    } else if (name == "/effort") {
      effort(argument);
    } else if (name == "/save") {
      report(save(argument));
    } else if (name == "/load") {
      report(load(argument));
    } else {
      std::fprintf(stderr, "k3: no command %s; /help lists them\n", utf8_repair(name).c_str());
    }
    return true;
  }

 private:
  void report(const Status& status) {
    if (!status.ok()) std::fprintf(stderr, "k3: %s\n", status.error().message.c_str());
  }

  void system(const std::string& text) {
    if (text.empty()) {
      const auto& messages = session_.messages();
      const bool has = !messages.empty() && messages.front().role == Role::system;
      note(has ? content_text(messages.front()) : "There is no system message; set one with /system TEXT.");
      return;
    }
    session_.set_system(text);
    note("System message set.");
  }

  void effort(const std::string& level) {
    const auto effort = effort_from(level);
    if (!effort && level != "off") {
      std::fputs("k3: /effort takes off, low, high or max\n", stderr);
      return;
    }
    ThinkingRequest request;
    request.enabled = effort.has_value();
    request.effort = effort;
    session_.set_thinking(request);
    note(effort ? fmt::format("Thinking at effort {}.", level) : "Thinking is off.");
  }

  Status save(const std::string& path) {
    if (path.empty()) return fail(Code::invalid_argument, "/save needs a file name");
    if (path.ends_with(kStateSuffix)) {
      K3_TRY(session_.save(path, identity_, std::to_string(turns_)));
      note(fmt::format("Wrote {} ({} messages with {} tokens read).", path, session_.messages().size(), session_.context_used()));
      return {};
    }
    JsonWriter w(1);
    w.begin_object();
    session_.write_conversation(w);
    K3_TRY(write_file(path, w.end_object().text() + "\n"));
    note(fmt::format("Wrote {} ({} messages).", path, session_.messages().size()));
    return {};
  }

  Status load(const std::string& path) {
    if (path.empty()) return fail(Code::invalid_argument, "/load needs a file name");
    if (path.ends_with(kStateSuffix)) {
      K3_TRY_ASSIGN(const std::string turns, session_.load(path, identity_));
      turns_ = std::strtoull(turns.c_str(), nullptr, 10);
      note(fmt::format("Read {} ({} messages with {} tokens read).", path, session_.messages().size(), session_.context_used()));
      return {};
    }
    K3_TRY_ASSIGN(const std::string text, read_file(path));
    K3_TRY_ASSIGN(ChatRequest request, parse_chat_request(text).with_context(path));
    if (!request.tools.empty() || request.has_images()) {
      return fail(Code::unsupported, "{}: this conversation has tools or images, which chat does not show", path);
    }
    K3_TRY(session_.set_messages(std::move(request.messages)).with_context(path));
    if (request.thinking.enabled || request.thinking.effort) session_.set_thinking(request.thinking);
    note(fmt::format("Read {} ({} messages).", path, session_.messages().size()));
    return {};
  }

  ChatSession& session_;
  const ChatOptions& options_;
  GenerateOptions generation_;
  std::string identity_;
  uint64_t first_seed_ = 0, turns_ = 0;
  bool colour_;
};

}  // namespace

Status chat_command(const ChatOptions& options) {
  for (const std::string& stop : options.sampling.stop) {
    if (stop.empty()) return fail(Code::invalid_argument, "--stop needs a text");
  }
  K3_TRY_ASSIGN(const Tokenizer tokenizer, load_tokenizer(options.model));
  K3_TRY_ASSIGN(const ChatFormat format, ChatFormat::load(model_folder(options.model), tokenizer));
  K3_TRY_ASSIGN(const GenerationConfig defaults, load_generation_config(model_folder(options.model)));
  K3_TRY_ASSIGN(const LoadedModel loaded, load_model(options.model, options.compute));
  const Config& config = loaded.model->config();
  K3_TRY(check_sampling_defaults(model_folder(options.model), defaults, config.vocab_size));
  K3_TRY_ASSIGN(const RunnerOptions run, runner_options(options.compute, config));
  K3_TRY_ASSIGN(Runner runner, Runner::create(*loaded.model, *loaded.pool, run));
  GenerateOptions generation;
  generation.sampling = sampling_params(options.sampling, defaults);
  generation.max_tokens = options.sampling.max_tokens;
  generation.stop_ids = stop_ids(config, defaults, tokenizer, format.end_token());
  ChatSession session(runner, format, tokenizer);
  if (!options.system.empty()) session.set_system(options.system);
  session.set_thinking(thinking_request(options.thinking));

  struct sigaction action {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: a Ctrl-C at the prompt wakes the line editor
  sigaction(SIGINT, &action, nullptr);
  LineReader reader;
  // Numbers of another policy or instruction set would not be this model's answer to the bit.
  const std::string identity =
      fmt::format("chat {} {} {}{}", model_identity(loaded.model->folder()), options.compute.policy, ops::isa_name(run.isa),
                  run.deterministic ? " deterministic" : "");
  Chat chat(session, options, generation, identity);
  if (reader.terminal())
    note(fmt::format("{}, loaded in {}. /help lists the commands, Ctrl-D leaves.", options.model,
                     format_seconds(loaded.load_seconds)));
  if (!format.verified())
    note("This chat format was written from public descriptions and never compared with the original.");
  std::string line;
  while (flush_out() && reader.read(line)) {
    if (line.empty()) continue;
    if (!is_utf8(line)) {
      std::fputs("k3: that line is not UTF-8 text\n", stderr);
      continue;
    }
    if (line.front() == '/') {
      if (!chat.command(line)) break;
    } else {
      chat.answer(line);
    }
  }
  if (reader.terminal()) std::fputs("\n", stderr);
  // Without a terminal there is no prompt to go back to: an interruption between answers ends the program.
  if (!reader.terminal() && g_stop) return fail(Code::cancelled, "interrupted");
  return {};
}

}  // namespace k3::cli
