//! Metrics that are computed from the state at scrape time, and their text format.

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, Error, TextEncoder};

/// The content type of [`text`].
pub const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All values of one metric, each with its labels. By the Prometheus naming conventions, a name that ends in `_total` is a
/// counter; any other is a gauge.
pub fn family<'a, const N: usize>(
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = ([(&'static str, &'a str); N], f64)>,
) -> MetricFamily {
    let is_counter = name.ends_with("_total");
    let label = |(name, value): (&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    };
    let metric = |(labels, value): ([(&str, &str); N], f64)| {
        let mut metric = Metric::from_label(labels.map(label).to_vec());
        if is_counter {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric
    };
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(if is_counter { MetricType::COUNTER } else { MetricType::GAUGE });
    family.set_metric(samples.into_iter().map(metric).collect());
    family
}

/// A metric with one value and no labels.
pub fn single(name: &str, help: &str, value: f64) -> MetricFamily {
    family(name, help, [([], value)])
}

/// A boolean as a metric value.
pub fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// Encodes the metrics in the Prometheus text format, sorted by name. Metrics without values are omitted.
pub fn text(mut families: Vec<MetricFamily>) -> Result<Vec<u8>, Error> {
    families.retain(|family| !family.get_metric().is_empty());
    families.sort_by(|a, b| a.name().cmp(b.name()));
    let mut text = Vec::new();
    TextEncoder::new().encode(&families, &mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_their_type_and_labels_and_are_sorted() {
        let families = vec![
            single("b_seconds", "Time.", 1.5),
            family("a_total", "Counted.", [([("kind", "x")], 2.0), ([("kind", "a \"b\"")], 3.0)]),
            family::<0>("nothing", "Has no values.", []),
        ];
        let expected = "# HELP a_total Counted.\n# TYPE a_total counter\n\
            a_total{kind=\"x\"} 2\na_total{kind=\"a \\\"b\\\"\"} 3\n\
            # HELP b_seconds Time.\n# TYPE b_seconds gauge\nb_seconds 1.5\n";
        assert_eq!(String::from_utf8(text(families).unwrap()).unwrap(), expected);
    }
}
