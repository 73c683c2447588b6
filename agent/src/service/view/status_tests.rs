//! The status value of a record: which row of the spec takes precedence.

use evenkeel_common::testing::service_status;

use super::*;

fn record() -> ServiceStatus {
    service_status("web")
}

/// A change that makes each row of spec 3.1 apply, in the spec's order.
type Row = (StatusValue, fn(&mut ServiceStatus));
const ROWS: [Row; 9] = [
    (StatusValue::Exhausted, |s| s.exhausted = true),
    (StatusValue::Degraded, |s| s.degraded = true),
    (StatusValue::Errored, |s| s.errored = Some("registry: unreachable".into())),
    (StatusValue::Blocked, |s| s.blocked = Some("sha256:1".into())),
    (StatusValue::NotFound, |s| s.not_found = Some("sha256:2".into())),
    (StatusValue::Deploying, |s| s.deploying = true),
    (StatusValue::Ok, |s| s.healthy = Some(true)),
    (StatusValue::Unhealthy, |s| s.healthy = Some(false)),
    (StatusValue::Unknown, |_| {}),
];

const NO_ERRORS: StatusContext =
    StatusContext { now: Timestamp::UNIX_EPOCH, next_poll: None, engine_error: None, state_error: None };

fn shown(mut record: ServiceStatus, context: &StatusContext) -> ServiceStatus {
    correct(&mut record, context);
    record.status = value(&record);
    record
}

#[test]
fn of_any_two_conditions_the_higher_row_of_the_spec_wins() {
    for (higher, (expected, holds)) in ROWS.iter().enumerate() {
        for (lower, also) in &ROWS[higher..] {
            // Both rows are derived from `healthy` and exclude each other.
            if (*expected, *lower) == (StatusValue::Ok, StatusValue::Unhealthy) {
                continue;
            }
            let mut both = record();
            also(&mut both);
            holds(&mut both);
            assert_eq!(shown(both, &NO_ERRORS).status, *expected, "{expected:?} with {lower:?}");
        }
    }
}

#[test]
fn without_the_engine_no_service_is_ok_or_healthy_and_higher_rows_stay() {
    let away = StatusContext { engine_error: Some("connection refused".to_owned()), ..NO_ERRORS };
    for (value, holds) in ROWS {
        let mut status = record();
        holds(&mut status);
        let shown = shown(status, &away);
        let expected = match value {
            StatusValue::Ok | StatusValue::Unhealthy => StatusValue::Unknown,
            other => other,
        };
        assert_eq!((shown.status, shown.healthy), (expected, None), "{value:?}");
    }
}

#[test]
fn a_state_that_can_not_be_written_is_a_fault_of_every_service() {
    let full = StatusContext { state_error: Some("disk full".to_owned()), ..NO_ERRORS };
    for (value, holds) in ROWS {
        let mut status = record();
        holds(&mut status);
        let shown = shown(status, &full);
        let expected = if value < StatusValue::Errored { value } else { StatusValue::Errored };
        assert_eq!((shown.status, shown.errored.as_deref()), (expected, Some("disk full")), "{value:?}");
        assert_eq!(shown.way_back, None, "not checked for this service");
    }
    let checked = |risk: Option<&str>| ServiceStatus {
        way_back: Some(if risk.is_some() { WayBackValue::AtRisk } else { WayBackValue::Ok }),
        way_back_reason: risk.map(str::to_owned),
        ..record()
    };
    for (risk, expected) in [(None, "disk full"), (Some("no space"), "no space")] {
        let shown = shown(checked(risk), &full);
        assert_eq!(shown.way_back, Some(WayBackValue::AtRisk));
        assert_eq!(shown.way_back_reason.as_deref(), Some(expected));
    }
}
