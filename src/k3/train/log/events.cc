#include "k3/train/log/events.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "k3/base/file.h"

namespace k3::train {
namespace {

// CRC-32C (Castagnoli), reflected, one byte at a time: a record is a hundred bytes.
constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = c & 1 ? 0x82F63B78U ^ c >> 1 : c >> 1;
    table[i] = c;
  }
  return table;
}

uint32_t masked_crc(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t c = ~0U;
  for (const char b : bytes) c = kTable[(c ^ static_cast<uint8_t>(b)) & 255] ^ c >> 8;
  c = ~c;
  return (c >> 15 | c << 17) + 0xA282EAD8U;
}

// Protocol buffers: just the wire types that an Event needs.
class Message {
 public:
  Message& varint(int field, uint64_t value) {
    key(field, 0);
    number(value);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    number(value.size());
    out_ += value;
    return *this;
  }
  template <class T>  // double or float
  Message& fixed(int field, T value) {
    key(field, sizeof(T) == 8 ? 1 : 5);
    raw(value);
    return *this;
  }
  template <class T>
  Message& raw(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out_.append(bytes, sizeof(T));
    return *this;
  }
  const std::string& text() const { return out_; }

 private:
  void key(int field, int type) { number(static_cast<uint64_t>(field << 3 | type)); }
  void number(uint64_t value) {
    for (; value >= 128; value >>= 7) out_ += static_cast<char>(value | 128);
    out_ += static_cast<char>(value);
  }
  std::string out_;
};

std::string scalar(std::string_view tag, double value) {
  return Message().bytes(1, Message().bytes(1, tag).fixed(2, static_cast<float>(value)).text()).text();
}

// A string tensor with the plugin name that puts it under "Text".
std::string text_value(std::string_view tag, std::string_view text) {
  const std::string metadata = Message().bytes(1, Message().bytes(1, "text").text()).text();
  const std::string tensor = Message().varint(1, 7).bytes(2, "").bytes(8, text).text();  // DT_STRING, a scalar
  return Message().bytes(1, Message().bytes(1, tag).bytes(9, metadata).bytes(8, tensor).text()).text();
}

std::string framed(const std::string& data) {
  std::string head = Message().raw(static_cast<uint64_t>(data.size())).text();
  head += Message().raw(masked_crc(head)).text();
  return head + data + Message().raw(masked_crc(data)).text();
}

std::string event(int64_t step, const std::string& summary) {
  Message out;
  out.fixed(1, static_cast<double>(std::time(nullptr))).varint(2, static_cast<uint64_t>(step)).bytes(5, summary);
  return framed(out.text());
}

std::string summary_of(const StepRecord& r) {
  std::string out = scalar("train/loss", r.loss) + scalar("train/learning_rate", r.learning_rate) + scalar("train/gradient_norm", r.gradient_norm) +
                    scalar("router/load_violation", r.load_violation) + scalar("router/load_violation_worst", r.load_violation_worst) +
                    scalar("attention/largest_logit", r.largest_logit);
  if (r.seconds > 0) out += scalar("speed/tokens_per_second", static_cast<double>(r.tokens) / r.seconds);
  return out;
}
std::string summary_of(const EvaluationRecord& r) {
  return scalar("evaluation/" + r.source + "/bits_per_byte", r.bits_per_byte) + scalar("evaluation/" + r.source + "/nats_per_token", r.nats_per_token);
}
std::string summary_of(const SampleRecord& r) { return text_value("sample/" + r.kind, "**" + r.prompt + "** " + r.text); }

}  // namespace

Result<EventWriter> EventWriter::create(const std::string& folder, const RunHistory& history) {
  // TensorBoard wants "tfevents" in the name; one fixed name, so that a resumed run has one curve.
  const std::string path = folder + "/events.out.tfevents.k3";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return fail(Code::unavailable, "{}: {}", path, std::strerror(errno));
  EventWriter out(fd, path);
  Message version;
  version.fixed(1, static_cast<double>(std::time(nullptr))).bytes(3, "brain.Event:2");
  std::string all = framed(version.text());
  for (const StepRecord& r : history.steps) all += event(r.step, summary_of(r));
  for (const EvaluationRecord& r : history.evaluations) all += event(r.step, summary_of(r));
  for (const SampleRecord& r : history.samples) all += event(r.step, summary_of(r));
  K3_TRY(write_all(fd, path, std::as_bytes(std::span(all))));
  return out;
}

EventWriter::EventWriter(EventWriter&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}
EventWriter::~EventWriter() {
  if (fd_ >= 0) ::close(fd_);
}

Status EventWriter::write_event(int64_t step, const std::string& summary) {
  const std::string record = event(step, summary);
  return write_all(fd_, path_, std::as_bytes(std::span(record)));
}
Status EventWriter::add(const StepRecord& record) { return write_event(record.step, summary_of(record)); }
Status EventWriter::add(const EvaluationRecord& record) { return write_event(record.step, summary_of(record)); }
Status EventWriter::add(const SampleRecord& record) { return write_event(record.step, summary_of(record)); }

}  // namespace k3::train
