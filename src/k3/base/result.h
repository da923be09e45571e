// Result<T>: the return type of everything that the caller or the world can make fail.
//
// An Error carries a code of a small closed set and one message that reads from the outside in
// ("load model: model-00002.safetensors: tensor 'x': data ends at ..."). with_context() prepends.
// Programmer errors are not Results but K3_CHECKs (check.h). No exception crosses a layer.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "k3/base/check.h"

namespace k3 {

enum class Code {
  invalid_argument,  // the request or the command line is wrong
  not_found,         // a file, tensor, field or id is missing
  corrupt,           // a file says something that cannot be true
  exhausted,         // memory, disk, pages or context are used up
  cancelled,
  deadline,
  unavailable,  // a peer or a device is not there now
  device_lost,
  unsupported,  // well formed, but not something this build can do
  internal,
};

std::string_view code_name(Code code);

struct Error {
  Code code = Code::internal;
  std::string message;

  Error with_context(std::string_view where) && {
    message.insert(0, ": ").insert(0, where);
    return std::move(*this);
  }
};

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    K3_CHECK(ok(), "value() of a failed Result: {}", error().message);
    return std::get<0>(state_);
  }
  const T& value() const& {
    K3_CHECK(ok(), "value() of a failed Result: {}", error().message);
    return std::get<0>(state_);
  }
  T&& value() && {
    K3_CHECK(ok(), "value() of a failed Result: {}", error().message);
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const { return std::get<1>(state_); }
  Error take_error() && { return std::get<1>(std::move(state_)); }

  Result with_context(std::string_view where) && {
    if (!ok()) std::get<1>(state_) = std::get<1>(std::move(state_)).with_context(where);
    return std::move(*this);
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  void value() const { K3_CHECK(ok(), "value() of a failed Status: {}", error_->message); }
  const Error& error() const { return *error_; }
  Error take_error() && { return *std::move(error_); }

  Result with_context(std::string_view where) && {
    if (error_) error_ = (*std::move(error_)).with_context(where);
    return std::move(*this);
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

// fail(Code::corrupt, "{}: tensor '{}' ...", path, name)
template <class... Args>
Error fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace k3

#define K3_CONCAT_INNER(a, b) a##b
#define K3_CONCAT(a, b) K3_CONCAT_INNER(a, b)

// K3_TRY(status_expression); returns the error to the caller.
#define K3_TRY(expression)                                \
  do {                                                    \
    if (auto k3_status = (expression); !k3_status.ok()) { \
      return std::move(k3_status).take_error();           \
    }                                                     \
  } while (0)

// K3_TRY_ASSIGN(auto x, result_expression);
#define K3_TRY_ASSIGN(lhs, expression) K3_TRY_ASSIGN_INNER(K3_CONCAT(k3_result_, __LINE__), lhs, expression)
#define K3_TRY_ASSIGN_INNER(name, lhs, expression)     \
  auto name = (expression);                            \
  if (!name.ok()) return std::move(name).take_error(); \
  lhs = *std::move(name)
