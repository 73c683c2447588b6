//! What goes over the wire, byte for byte, against files that only change on purpose (DECISIONS 3).

use evenkeel_common::wire::{AuditEntry, Kind, Level, PushedEntry};

#[test]
fn a_pushed_entry_has_the_entrys_fields_in_order_and_its_number() {
    let at = "2026-01-02T03:04:05.678Z".parse().expect("a time");
    let mut entry = AuditEntry::new(at, "web", Kind::ROLLED_BACK, Level::Warning, "web went back");
    entry.machine = "box-1".into();
    entry.old_digest = Some("sha256:aa".into());
    entry.new_digest = Some("sha256:bb".into());
    entry.container = Some("web-1".into());
    entry.reason = Some("exit code 1".into());
    entry.output = "last line\n".into();
    let pushed = PushedEntry { entry, seq: Some(1_767_323_045_678_901), agent: None };
    let golden = include_str!("golden/pushed.json").trim_end();
    assert_eq!(serde_json::to_string(&pushed).expect("it can be written"), golden);
    assert_eq!(serde_json::from_str::<PushedEntry>(golden).expect("it can be read"), pushed);
}

#[test]
fn an_entry_of_the_predecessors_form_is_read_without_a_number() {
    let golden = include_str!("golden/pushed_by_predecessor.json");
    let pushed: PushedEntry = serde_json::from_str(golden).expect("it can be read");
    assert_eq!((pushed.seq, pushed.agent), (None, None));
    assert_eq!((pushed.entry.machine.as_str(), pushed.entry.event.as_str()), ("box-2", "updated"));
    assert_eq!(pushed.entry.reason, None);
}
