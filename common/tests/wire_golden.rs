//! Compares the wire format byte for byte with golden files, which only change deliberately (DECISIONS 3).

use evenkeel_common::wire::{
    AuditEntry, CellVerdict, FleetAnswer, FleetAsk, FleetDecisions, FleetImages, FleetUnblockReply,
    FleetUnblockRequest, FreezeReply, FreezeRequest, Health, HistoryPage, IngestReply, Inventory,
    InventoryReply, Kind, Level, Permission, ReleaseReply, ThawReply, ThawRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Asserts that a golden file survives a round trip.
fn survives<T: Serialize + DeserializeOwned>(golden: &str) -> T {
    let read: T = serde_json::from_str(golden).expect("valid JSON");
    assert_eq!(serde_json::to_string(&read).expect("serializable"), golden.trim_end());
    read
}

#[test]
fn a_pushed_entry_has_the_fields_of_the_entry_in_order_and_a_sequence_number() {
    let at = "2026-01-02T03:04:05.678Z".parse().expect("a time");
    let mut entry = AuditEntry::new(at, "web", Kind::ROLLED_BACK, Level::Warning, "web went back");
    entry.machine = "box-1".into();
    entry.old_digest = Some("sha256:aa".into());
    entry.new_digest = Some("sha256:bb".into());
    entry.container = Some("web-1".into());
    entry.reason = Some("exit code 1".into());
    entry.output = "last line\n".into();
    entry.seq = Some(1_767_323_045_678_901);
    assert_eq!(survives::<AuditEntry>(include_str!("golden/pushed.json")), entry);
}

#[test]
fn an_entry_in_the_predecessors_format_has_no_sequence_number() {
    let golden = include_str!("golden/pushed_by_predecessor.json");
    let entry: AuditEntry = serde_json::from_str(golden).expect("valid JSON");
    assert_eq!((entry.machine.as_str(), entry.event.as_str()), ("box-2", "updated"));
    assert_eq!((entry.seq, entry.reason), (None, None));
}

#[test]
fn a_pushed_entry_may_name_its_numbering_and_its_image() {
    let pushed: AuditEntry = survives(include_str!("golden/pushed_with_epoch.json"));
    assert_eq!(pushed.epoch.as_deref(), Some("0f6e2c9a4b1d8e73"));
    assert_eq!(pushed.image.as_deref(), Some("registry.example/team/web:1"));
}

#[test]
fn responses_of_the_warden_are_additive() {
    let reply: IngestReply = survives(include_str!("golden/ingest_array_reply.json"));
    assert_eq!((reply.fleet, reply.rejected[0].index), (12, 1));
    let before: IngestReply = serde_json::from_str(r#"{"status":"accepted"}"#).expect("an older warden");
    assert_eq!((before.fleet, before.rejected.len()), (0, 0));
    let page: HistoryPage = survives(include_str!("golden/history_page.json"));
    assert_eq!((page.entries[0].id, page.next), (1_790_000_000_000_002, Some(1_790_000_000_000_002)));
    let away: Health = survives(r#"{"status":"ok","store":"away"}"#);
    assert_eq!(away.store.as_deref(), Some("away"));
}

#[test]
fn json_that_no_warden_sent_is_no_decision() {
    for text in [
        "{}",
        r#"{"message":"maintenance"}"#,
        r#"{"status":"ok"}"#,
        r#"{"revision":3}"#,
        r#"{"revision":3,"freezes":[]}"#,
        r#"{"freezes":[],"failed":[]}"#,
    ] {
        assert!(serde_json::from_str::<FleetDecisions>(text).is_err(), "{text}");
    }
}

#[test]
fn fleet_decisions_keep_their_format() {
    let decisions: FleetDecisions = survives(include_str!("golden/fleet_decisions.json"));
    assert_eq!((decisions.revision, decisions.freezes[0].scope.machine.as_deref()), (12, Some("box-1")));
    assert_eq!((decisions.seen[0].digest.as_str(), decisions.seen[0].seconds_ago), ("sha256:bb", 7200));
    assert_eq!((decisions.verdicts, decisions.store.as_deref()), (11, Some("away")));
    let before = FleetDecisions { seen: Vec::new(), verdicts: 0, store: None, ..decisions };
    let text = serde_json::to_string(&before).expect("decisions are JSON");
    assert!(
        ["seen", "verdicts", "store"].iter().all(|key| !text.contains(key)),
        "older agents get only the fields that they know: {text}"
    );
    let none = serde_json::to_string(&FleetDecisions::default()).expect("decisions are JSON");
    assert_eq!(none, r#"{"revision":0,"freezes":[],"failed":[]}"#, "what every version has always sent");
    assert_eq!(survives::<FleetDecisions>(&none), FleetDecisions::default());
    let answer: FleetAnswer = survives(include_str!("golden/fleet_answer.json"));
    assert_eq!((answer.answer, answer.again), (Permission::Wait, 30));
    let away: FleetAnswer = survives(include_str!("golden/fleet_answer_store_away.json"));
    assert_eq!((answer.store, away.store.as_deref()), (None, Some("away")));
    let ask = r#"{"image":"r.example/web:1","digest":"sha256:bb","service":"web","ring":2}"#;
    assert_eq!(survives::<FleetAsk>(ask).ring, 2);
}

#[test]
fn operator_requests_keep_their_format() {
    let freeze: FreezeRequest = survives(include_str!("golden/freeze_request.json"));
    assert_eq!(freeze.scope.image.as_deref(), Some("registry.example/team/web"));
    let all: FreezeRequest = serde_json::from_str(r#"{"reason":"x","until":"2026-01-03T03:04:05Z"}"#)
        .expect("a freeze of the whole fleet");
    assert!(all.scope.is_all());
    let frozen: FreezeReply = survives(include_str!("golden/freeze_reply.json"));
    assert_eq!((frozen.id.as_str(), frozen.revision), ("7", 12));
    let thaw: ThawRequest = survives(include_str!("golden/thaw_request.json"));
    assert_eq!(thaw.id.as_deref(), Some("7"));
    assert_eq!(survives::<ThawRequest>("{}"), ThawRequest::default());
    assert_eq!(survives::<ThawReply>(include_str!("golden/thaw_reply.json")).revision, 13);
    let unblock: FleetUnblockRequest = survives(include_str!("golden/unblock_request.json"));
    assert_eq!(unblock.digest, "sha256:bb");
    assert_eq!(survives::<FleetUnblockReply>(include_str!("golden/unblock_reply.json")).revision, 14);
}

#[test]
fn release_and_inventory_responses_keep_their_format() {
    let release: FleetAsk = survives(include_str!("golden/release_request.json"));
    assert_eq!((release.service.as_str(), release.ring), ("web", 2));
    assert_eq!(survives::<ReleaseReply>(include_str!("golden/release_reply.json")).status, "released");
    assert_eq!(survives::<InventoryReply>(include_str!("golden/inventory_reply.json")).fleet, 12);
}

#[test]
fn inventories_keep_their_format() {
    let inventory: Inventory = survives(include_str!("golden/inventory.json"));
    assert_eq!(inventory.images[0].available.as_deref(), Some("sha256:bb"));
    let named: Vec<_> = inventory.images.iter().map(|image| image.available_image.as_deref()).collect();
    assert_eq!(named, [None, Some("registry.example/team/api:1.3")]);
    let images: FleetImages = survives(include_str!("golden/fleet_images.json"));
    assert_eq!(images.images[0].cells[0].verdict, Some(CellVerdict::Proven));
}
