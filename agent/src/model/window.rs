//! Weekly time windows in a time zone, in which updates may begin (DECISIONS 7).

use jiff::civil::{DateTime, Time, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Timestamp, ToSpan};

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// Minutes per day.
const DAY: u16 = 24 * 60;
/// How many days to look ahead for the next opening. A daylight-saving change can skip a range once.
const HORIZON: i64 = 16;

/// Weekly ranges in the local time of a time zone. An hour that is repeated by a daylight-saving change counts twice, a
/// skipped one does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    ranges: Vec<Range>,
    zone: TimeZone,
}

/// A range of hours on certain days.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    /// Days on which it begins, Monday first.
    days: [bool; 7],
    /// Minute of the day at which it begins.
    from: u16,
    /// Minute of the day at which it ends (exclusive); on the next day if it is not after `from`.
    to: u16,
}

/// Description of a valid range, for error messages.
pub const WINDOW_FORM: &str =
    "days and hours such as \"Mon-Fri 02:00-05:00\", \"Sat,Sun 00:00-24:00\" or \"22:00-04:00\"";

impl Window {
    /// Parses ranges. Returns the index of the first invalid one on error.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>, zone: TimeZone) -> Result<Self, usize> {
        let ranges = texts.into_iter().enumerate().map(|(n, text)| Range::parse(text).ok_or(n));
        Ok(Self { ranges: ranges.collect::<Result<_, _>>()?, zone })
    }

    /// Reports whether `now` is in one of the ranges.
    pub fn is_open(&self, now: Timestamp) -> bool {
        let local = self.zone.to_datetime(now);
        self.ranges.iter().any(|range| range.contains(local))
    }

    /// Returns when a closed window opens next; `None` if that is more than two weeks away.
    pub fn next_opening(&self, now: Timestamp) -> Option<Timestamp> {
        let today = self.zone.to_datetime(now).date();
        let ahead = |days: i64| today.checked_add(Span::new().days(days)).ok();
        let begins = (0..=HORIZON).filter_map(ahead).flat_map(|day| {
            let at_hour = move |range: &Range| minute(range.from).map(|time| day.to_datetime(time));
            self.ranges.iter().filter_map(at_hour).flat_map(|at| self.instants(at))
        });
        // A daylight-saving change may skip the beginning of a range, or repeat part of one.
        let end = now.checked_add((HORIZON * 24).hours()).unwrap_or(Timestamp::MAX);
        let shifts = self.zone.following(now).map(|shift| shift.timestamp()).take_while(|at| *at <= end);
        begins.chain(shifts).filter(|at| *at > now && self.is_open(*at)).min()
    }

    /// Returns the time zone's name for display.
    pub fn zone(&self) -> &str {
        self.zone.iana_name().unwrap_or("local time")
    }

    /// Returns the instants at which the local time is `local`: none, one, or two.
    fn instants(&self, local: DateTime) -> Vec<Timestamp> {
        let offsets = match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => vec![offset],
            AmbiguousOffset::Gap { .. } => vec![],
            AmbiguousOffset::Fold { before, after } => vec![before, after],
        };
        offsets.into_iter().filter_map(|offset| offset.to_timestamp(local).ok()).collect()
    }
}

impl Range {
    /// `[days ]HH:MM-HH:MM`.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (days, hours) = match text.rsplit_once(char::is_whitespace) {
            Some((days, hours)) => (days_in(days)?, hours),
            None => ([true; 7], text),
        };
        let (from, to) = hours.split_once('-')?;
        let (from, to) = (minutes(from)?, minutes(to)?);
        (from < DAY && from != to).then_some(Self { days, from, to })
    }

    fn contains(&self, local: DateTime) -> bool {
        let now = u16::from(local.hour().unsigned_abs()) * 60 + u16::from(local.minute().unsigned_abs());
        let today = local.date().weekday();
        let (on_day, after_midnight) = (self.begins_on(today), self.begins_on(today.previous()));
        if self.from < self.to {
            on_day && (self.from..self.to).contains(&now)
        } else {
            (on_day && now >= self.from) || (after_midnight && now < self.to)
        }
    }

    fn begins_on(&self, day: Weekday) -> bool {
        self.days[usize::from(day.to_monday_zero_offset().unsigned_abs())]
    }
}

/// `Mon-Fri`, `Sat,Sun`, `Fri-Mon`.
fn days_in(text: &str) -> Option<[bool; 7]> {
    let mut days = [false; 7];
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (day(first)?, day(last)?);
        days[day] = true;
        while day != last {
            day = (day + 1) % DAYS.len();
            days[day] = true;
        }
    }
    Some(days)
}

fn day(text: &str) -> Option<usize> {
    DAYS.iter().position(|day| day.eq_ignore_ascii_case(text.trim()))
}

/// `HH:MM` up to 24:00.
fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.trim().split_once(':')?;
    let number = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        let is_number = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u16>().ok()).flatten()
    };
    let (hours, minutes) = (number(hours, 1..=2)?, number(minutes, 2..=2)?);
    let all = hours * 60 + minutes;
    (minutes < 60 && all <= DAY).then_some(all)
}

fn minute(of_day: u16) -> Option<Time> {
    Time::new(i8::try_from(of_day / 60).ok()?, i8::try_from(of_day % 60).ok()?, 0, 0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(texts: &[&str], zone: &str) -> Window {
        Window::parse(texts.iter().copied(), TimeZone::get(zone).unwrap()).unwrap()
    }

    /// Returns whether the window is open at this time, and when it opens next.
    fn at(window: &Window, now: &str) -> (bool, String) {
        let now: Timestamp = now.parse().unwrap();
        (window.is_open(now), window.next_opening(now).unwrap().to_string())
    }

    #[test]
    fn a_window_is_open_in_its_ranges_and_reports_its_next_opening() {
        // 2026-03-02 is a Monday.
        for (texts, now, open, next) in [
            (&["Mon-Fri 02:00-05:00"][..], "2026-03-02T01:59:59Z", false, "2026-03-02T02:00:00Z"),
            (&["Mon-Fri 02:00-05:00"], "2026-03-02T02:00:00Z", true, "2026-03-03T02:00:00Z"),
            (&["Mon-Fri 02:00-05:00"], "2026-03-02T04:59:59.9Z", true, "2026-03-03T02:00:00Z"),
            (&["Mon-Fri 02:00-05:00"], "2026-03-02T05:00:00Z", false, "2026-03-03T02:00:00Z"),
            (&["Mon-Fri 02:00-05:00"], "2026-03-06T05:00:00Z", false, "2026-03-09T02:00:00Z"),
            // No days: every day.
            (&["02:00-05:00"], "2026-03-07T03:00:00Z", true, "2026-03-08T02:00:00Z"),
            // Across midnight: it belongs to the day on which it begins.
            (&["Fri 22:00-04:00"], "2026-03-06T23:00:00Z", true, "2026-03-13T22:00:00Z"),
            (&["Fri 22:00-04:00"], "2026-03-07T03:59:00Z", true, "2026-03-13T22:00:00Z"),
            (&["Fri 22:00-04:00"], "2026-03-06T03:00:00Z", false, "2026-03-06T22:00:00Z"),
            // A whole day, and days across the end of the week.
            (&["Sun 00:00-24:00"], "2026-03-08T23:59:59Z", true, "2026-03-15T00:00:00Z"),
            (&["Sun 00:00-24:00"], "2026-03-09T00:00:00Z", false, "2026-03-15T00:00:00Z"),
            (&["sat-mon 1:00-2:00"], "2026-03-09T01:30:00Z", true, "2026-03-14T01:00:00Z"),
            (&["Tue,Thu 10:00-11:00"], "2026-03-04T00:00:00Z", false, "2026-03-05T10:00:00Z"),
            // The nearest of several.
            (&["Mon 10:00-11:00", "Sun 00:00-24:00"], "2026-03-03T00:00:00Z", false, "2026-03-08T00:00:00Z"),
        ] {
            assert_eq!(at(&window(texts, "UTC"), now), (open, next.to_owned()), "{texts:?} at {now}");
        }
    }

    #[test]
    fn a_window_follows_local_time_through_daylight_saving_changes() {
        // In Vienna the clock goes from 02:00 to 03:00 on 2026-03-29, and from 03:00 back to 02:00 on 2026-10-25.
        for (text, now, open, next) in [
            ("02:30-05:00", "2026-03-28T01:30:00Z", true, "2026-03-29T01:00:00Z"),
            ("02:30-05:00", "2026-03-29T00:59:59Z", false, "2026-03-29T01:00:00Z"),
            ("02:30-05:00", "2026-03-29T01:00:00Z", true, "2026-03-30T00:30:00Z"),
            // Skipped entirely: the next day.
            ("02:00-03:00", "2026-03-29T00:59:00Z", false, "2026-03-30T00:00:00Z"),
            ("Sun 02:00-03:00", "2026-03-28T12:00:00Z", false, "2026-04-05T00:00:00Z"),
            // Repeated: open twice.
            ("02:00-02:30", "2026-10-25T00:10:00Z", true, "2026-10-25T01:00:00Z"),
            ("02:00-02:30", "2026-10-25T00:40:00Z", false, "2026-10-25T01:00:00Z"),
            ("02:00-02:30", "2026-10-25T01:10:00Z", true, "2026-10-26T01:00:00Z"),
            ("01:30-02:15", "2026-10-25T00:20:00Z", false, "2026-10-25T01:00:00Z"),
            ("22:00-04:00", "2026-10-25T02:59:00Z", true, "2026-10-25T21:00:00Z"),
            ("22:00-04:00", "2026-10-25T03:00:00Z", false, "2026-10-25T21:00:00Z"),
        ] {
            let found = at(&window(&[text], "Europe/Vienna"), now);
            assert_eq!(found, (open, next.to_owned()), "{text} at {now}");
        }
        // Some zones change at midnight.
        let beirut = window(&["00:00-00:30"], "Asia/Beirut");
        assert_eq!(at(&beirut, "2026-03-28T21:59:00Z"), (false, "2026-03-29T21:00:00Z".into()));
    }

    #[test]
    fn an_invalid_range_is_reported_by_its_index() {
        for text in [
            "",
            "02:00",
            "02:00-",
            "24:00-02:00",
            "02:00-25:00",
            "02:60-03:00",
            "02:00-02:00",
            "Foo 02:00-03:00",
            "Mon- 02:00-03:00",
            "Mon 02-03",
            "Mon, 02:00-03:00",
            "02:00 - 03:00",
            "+2:00-03:00",
            "Mon-Fri",
            "é",
        ] {
            assert_eq!(Window::parse(["00:00-01:00", text], TimeZone::UTC), Err(1), "{text:?}");
        }
    }
}
