// Purpose:  metrics as Prometheus text: families are added with their values and written out at once.
// Shapes:   none.
// Units:    as the names say.
// Memory:   owns what was added until text().
// Threads:  one thread.
// Errors:   none.
// Source:   the Prometheus text format 0.0.4 (by prometheus-cpp).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace k3 {

class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  MetricsText();
  ~MetricsText();
  MetricsText(const MetricsText&) = delete;
  MetricsText& operator=(const MetricsText&) = delete;

  // Calls with one name one after the other make one family.
  void counter(const std::string& name, const std::string& help, double value, const Labels& labels = {});
  void gauge(const std::string& name, const std::string& help, double value, const Labels& labels = {});
  // counts: of each bucket alone, one more than bounds.
  void histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                 const std::vector<int64_t>& counts, double sum, const Labels& labels = {});
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3
