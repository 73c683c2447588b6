//! The behaviour common to all stores: one suite, run for each of them.

mod cases;

use std::sync::Arc;

use async_trait::async_trait;
use evenkeel_common::clock::SystemClock;
use evenkeel_warden::keep::Keep;
use evenkeel_warden::keep::embedded::Embedded;
use tempfile::TempDir;

use crate::postgres::Server;

/// The environment of one store.
#[async_trait]
pub(crate) trait World: Send + Sync {
    /// Opens the store: empty at first, later the same one. The previous handle has been dropped by then.
    async fn open(&self) -> Arc<dyn Keep>;
}

struct Folder(TempDir);

#[async_trait]
impl World for Folder {
    async fn open(&self) -> Arc<dyn Keep> {
        Arc::new(Embedded::open(self.0.path(), Arc::new(SystemClock)).unwrap())
    }
}

#[async_trait]
impl World for Server {
    async fn open(&self) -> Arc<dyn Keep> {
        self.keep()
    }
}

macro_rules! conformance {
    ($($case:ident,)*) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::cases::$case(&super::Server::start()).await;
            })*
        }

        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::cases::$case(&super::Folder(tempfile::tempdir().unwrap())).await;
            })*
        }
    };
}

conformance! {
    ids_ascend_without_gaps_and_entries_are_read_in_order,
    a_resent_entry_is_stored_once,
    committed_changes_survive_reopening,
    a_reader_gets_every_change_once,
    many_writers_lose_nothing_and_readers_skip_nothing,
    only_transitions_of_a_heartbeat_are_entries,
    only_one_of_two_concurrent_swaps_succeeds,
    the_fuse_trips_once_however_many_wardens_see_the_rollbacks,
    a_value_is_removed_unless_it_has_changed,
    outdated_fleet_values_are_marked_and_then_removed,
    the_latest_verdict_of_a_machine_counts,
    a_decision_and_its_entry_are_one_commit,
    every_filter_finds_what_it_should_page_by_page,
    a_long_search_is_split_into_pages,
    entries_beyond_the_limits_are_removed_oldest_first,
    entries_of_a_clock_that_was_ahead_hold_back_no_older_ones,
    an_agent_that_sends_a_lot_only_shortens_its_own_history,
    the_failures_of_a_removed_agent_do_not_trip_the_fuse,
    a_clock_that_leaps_removes_nothing,
    an_empty_batch_checks_whether_the_store_is_writable,
}
