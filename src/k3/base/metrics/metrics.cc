#include "k3/base/metrics/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <cmath>
#include <limits>

namespace k3 {

struct MetricsText::Impl {
  std::vector<prometheus::MetricFamily> families;

  prometheus::ClientMetric& add(const std::string& name, const std::string& help, prometheus::MetricType type,
                                const Labels& labels) {
    if (families.empty() || families.back().name != name) {
      families.emplace_back();
      families.back().name = name;
      families.back().help = help;
      families.back().type = type;
    }
    families.back().metric.emplace_back();
    prometheus::ClientMetric& metric = families.back().metric.back();
    for (const auto& [key, value] : labels) {
      metric.label.emplace_back();
      metric.label.back().name = key;
      metric.label.back().value = value;
    }
    return metric;
  }
};

MetricsText::MetricsText() : impl_(std::make_unique<Impl>()) {}
MetricsText::~MetricsText() = default;

void MetricsText::counter(const std::string& name, const std::string& help, double value, const Labels& labels) {
  impl_->add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void MetricsText::gauge(const std::string& name, const std::string& help, double value, const Labels& labels) {
  impl_->add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void MetricsText::histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                            const std::vector<int64_t>& counts, double sum, const Labels& labels) {
  auto& histogram = impl_->add(name, help, prometheus::MetricType::Histogram, labels).histogram;
  uint64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    total += static_cast<uint64_t>(counts[i]);
    prometheus::ClientMetric::Bucket bucket;
    bucket.cumulative_count = total;
    bucket.upper_bound = i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity();
    histogram.bucket.push_back(bucket);
  }
  histogram.sample_count = total;
  histogram.sample_sum = sum;
}

std::string MetricsText::text() const { return prometheus::TextSerializer().Serialize(impl_->families); }

}  // namespace k3
