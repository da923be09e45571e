#include "k3/train/log/run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/train/json_number.h"
#include "k3/train/log/events.h"
#include "k3/train/log/run_report.h"

namespace k3::train {
namespace {

std::string line_of(const StepRecord& r) {
  JsonWriter out;
  out.begin_object().field("type", "step").field("step", r.step).field("phase", r.phase).field("loss", r.loss);
  out.field("learning_rate", r.learning_rate).field("gradient_norm", r.gradient_norm).field("load_violation", r.load_violation);
  out.field("load_violation_worst", r.load_violation_worst).field("largest_logit", r.largest_logit).field("seconds", r.seconds);
  out.field("tokens", r.tokens).field("flops", r.flops).end_object();
  return out.text() + "\n";
}

std::string line_of(const EvaluationRecord& r) {
  JsonWriter out;
  out.begin_object().field("type", "evaluation").field("step", r.step).field("source", r.source);
  out.field("nats_per_token", r.nats_per_token).field("bits_per_byte", r.bits_per_byte).field("tokens", r.tokens).field("bytes", r.bytes);
  out.end_object();
  return out.text() + "\n";
}

std::string line_of(const SampleRecord& r) {
  JsonWriter out;
  out.begin_object().field("type", "sample").field("step", r.step).field("kind", r.kind).field("prompt", r.prompt).field("text", r.text).end_object();
  return out.text() + "\n";
}

double number(const JsonNode& node, std::string_view key) { return json_real(node.find_set(key)).value_or(0); }
int64_t whole(const JsonNode& node, std::string_view key) { return json_whole(node.find_set(key)).value_or(0); }

std::string text(const JsonNode& node, std::string_view key) {
  const JsonNode* const field = node.find_set(key);
  return field != nullptr ? field->text : std::string();
}

// False: no line of a log, or one of a later step.
bool read_line(std::string_view line, int64_t last, RunHistory& history) {
  const Result<JsonNode> root = parse_json(line);
  if (!root.ok() || !root->is_object()) return false;
  const std::optional<int64_t> step = json_whole(root->find_set("step"));
  if (!step || *step > last) return false;
  const std::string type = text(*root, "type");
  if (type == "step") {
    StepRecord r{*step, text(*root, "phase")};
    r.loss = number(*root, "loss");
    r.learning_rate = number(*root, "learning_rate");
    r.gradient_norm = number(*root, "gradient_norm");
    r.load_violation = number(*root, "load_violation");
    r.load_violation_worst = number(*root, "load_violation_worst");
    r.largest_logit = number(*root, "largest_logit");
    r.seconds = number(*root, "seconds");
    r.tokens = whole(*root, "tokens");
    r.flops = number(*root, "flops");
    history.steps.push_back(r);
  } else if (type == "evaluation") {
    history.evaluations.push_back(
        {*step, text(*root, "source"), number(*root, "nats_per_token"), number(*root, "bits_per_byte"), whole(*root, "tokens"), whole(*root, "bytes")});
  } else if (type == "sample") {
    history.samples.push_back({*step, text(*root, "kind"), text(*root, "prompt"), text(*root, "text")});
  }
  return true;
}

}  // namespace

RunHistory read_history(std::string_view lines, int64_t last, std::string* kept) {
  RunHistory history;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string_view line = lines.substr(at, end - at);
    // The last line of a killed run may be half of one.
    if (read_line(line, last, history)) *kept += std::string(line) + "\n";
    at = end + 1;
  }
  return history;
}

struct RunLog::Impl {
  std::string path, folder;
  int fd = -1;
  RunFacts facts;
  RunHistory history;
  std::unique_ptr<EventWriter> events;

  ~Impl() {
    if (fd >= 0) ::close(fd);
  }

  Status append(std::string_view line) { return write_all(fd, path, std::as_bytes(std::span(line))); }
};

Result<RunLog> RunLog::open(const std::string& folder, int64_t resumed_step, RunFacts facts) {
  auto impl = std::make_unique<Impl>();
  impl->folder = folder;
  impl->path = folder + "/log.jsonl";
  impl->facts = std::move(facts);
  std::string kept;
  if (path_exists(impl->path) && resumed_step > 0) {
    K3_TRY_ASSIGN(const std::string all, read_file(impl->path));
    impl->history = read_history(all, resumed_step, &kept);
  }
  K3_TRY(write_file(impl->path, kept));
  impl->fd = ::open(impl->path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (impl->fd < 0) return fail(Code::unavailable, "{}: {}", impl->path, std::strerror(errno));
  K3_TRY_ASSIGN(EventWriter events, EventWriter::create(folder, impl->history));
  impl->events = std::make_unique<EventWriter>(std::move(events));
  return RunLog(std::move(impl));
}

Status RunLog::add(const StepRecord& record) {
  impl_->history.steps.push_back(record);
  K3_TRY(impl_->append(line_of(record)));
  return impl_->events->add(record);
}

Status RunLog::add(const EvaluationRecord& record) {
  impl_->history.evaluations.push_back(record);
  K3_TRY(impl_->append(line_of(record)));
  return impl_->events->add(record);
}

Status RunLog::add(const SampleRecord& record) {
  impl_->history.samples.push_back(record);
  K3_TRY(impl_->append(line_of(record)));
  return impl_->events->add(record);
}

const std::vector<StepRecord>& RunLog::steps() const { return impl_->history.steps; }
const std::vector<EvaluationRecord>& RunLog::evaluations() const { return impl_->history.evaluations; }
Status RunLog::write_report() const { return write_file(impl_->folder + "/report.html", run_report(impl_->facts, impl_->history)); }

RunLog::RunLog(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RunLog::RunLog(RunLog&&) noexcept = default;
RunLog& RunLog::operator=(RunLog&&) noexcept = default;
RunLog::~RunLog() = default;

}  // namespace k3::train
