//! Scenarios with snapshots (DECISIONS 13): what is stopped, what is told, and when a copy that has failed is tried again.

mod cut_short;
mod env_file;
mod kept;
mod left_stopped;
mod pending;
mod shared;
mod stop;

use evenkeel_common::wire::Level;

use super::*;
use crate::config::UpdateConfig;
use crate::model::snapshot::{Copied, CopyMade, FolderId, KeptFolder, Mounter, Room, SnapshotRules, Source};
use crate::model::{ComposeError, Hooks};
use crate::ports::Priority;
use crate::service::action::{CheckAsked, SnapshotStep};
use crate::service::gates::candidate::SnapshotSeen;
use crate::service::input::{CheckFault, NotStarted, SnapshotStepped};
use crate::service::rollout::plan::{Cause, GoBack, GoBackReason};
use crate::service::rollout::snapshot::KeptSnapshot;
use crate::service::rollout::step::Phase;
pub(crate) use stop::copying;

const OLD: &str = "sha256:v1";
const NEW: &str = "sha256:v2";

fn with_data() -> Scenario {
    with_data_of(config())
}

fn with_data_of(config: ServiceConfig) -> Scenario {
    let rules = SnapshotRules { of: vec!["/srv/a".into(), "/srv/b".into()], keep: 2, max_bytes: 1 << 30 };
    let update = UpdateConfig { snapshot: Some(rules), ..UpdateConfig::default() };
    Scenario::of(ServiceConfig { update: Some(Arc::new(update)), ..config })
}

fn source(of: &str) -> Source {
    Source { of: of.into(), volume: None, folder: of.into() }
}

fn update() -> Observation {
    let room = Room { bytes: 1, available: 1 << 30, is_shared: false, copies: 1, ..Room::default() };
    let data = SnapshotSeen {
        sources: vec![source("/srv/a"), source("/srv/b")],
        rooms: vec![("/srv".into(), room)],
        dumps: "/state".into(),
        earlier: None,
    };
    Observation { snapshot: Some(Ok(data)), ..observed('2', &[local(OLD, &['1'])], &[&old_container()]) }
}

fn old_container() -> Container {
    Container { image: ImageId(OLD.into()), ..running("web-1") }
}

fn new_container() -> Container {
    Container { id: "web-2".into(), image: ImageId(NEW.into()), ..running("web-1") }
}

fn mounter(id: &str, name: &str) -> Mounter {
    Mounter {
        id: id.into(),
        name: name.into(),
        service: (String::new(), String::new()),
        depends_on: Vec::new(),
        is_paused: false,
        task_of: None,
    }
}

impl Scenario {
    fn snapshot_step(&mut self) -> SnapshotStep {
        match self.act() {
            Some(Action::Step(Step::Snapshot(step))) => step,
            other => panic!("no step of a snapshot, but {other:?}"),
        }
    }

    /// What the next check asks for.
    fn next_check_asks(&mut self, is_manual: bool) -> CheckAsked {
        self.service.checks.drop_running();
        self.service.checks.request();
        if is_manual {
            self.service.checks.request_manual(true, self.now);
        }
        let check = self.service.next_check(self.now);
        let Some(Action::Check { asked, .. }) = check else { panic!("{check:?}") };
        asked
    }

    fn step_ends(&mut self, result: StepResult) -> &mut Self {
        let action = self.act();
        assert!(matches!(action, Some(Action::Step(_))), "no step is due, but {action:?}");
        self.input(Input::Stepped(result))
    }

    fn step_of_snapshot_ends(&mut self, stepped: SnapshotStepped) -> SnapshotStep {
        let step = self.snapshot_step();
        self.input(Input::Stepped(StepResult::Snapshot(stepped)));
        step
    }

    fn runs(&mut self, running: &[Mounter]) -> SnapshotStep {
        self.step_of_snapshot_ends(SnapshotStepped::Running(running.to_vec()))
    }

    /// The new image is on the disk.
    fn fetches(&mut self) -> &mut Self {
        self.step_ends(StepResult::ImagesPinned { missing: Vec::new() });
        let ids = vec![(IMAGE.into(), ImageId(NEW.into()))];
        self.step_ends(StepResult::Pulled { ids, labels: BTreeMap::new() })
    }

    /// The copy fails as often as it is tried, and what there is of it is about to be removed.
    fn stops_copying(&mut self) {
        self.fetches().runs(&[]);
        for _ in 0..2 {
            assert!(matches!(self.snapshot_step(), SnapshotStep::Copy { .. }));
            self.input(Input::Stepped(StepResult::Failed("/srv/a is full".into())));
            self.now += SignedDuration::from_mins(1);
        }
        self.step_ends(StepResult::TagsRestored).step_ends(StepResult::Unpinned);
    }

    /// The same, and the update is given up.
    fn can_not_copy(&mut self) {
        self.stops_copying();
        let all = SnapshotStepped::Expired { left: Vec::new(), why: String::new() };
        let step = self.step_of_snapshot_ends(all);
        assert!(matches!(step, SnapshotStep::Expire { .. }), "{step:?}");
        assert_eq!(self.service.durable().deployment, None);
    }

    /// The data is copied, compose changes no container, and the update is given up.
    fn is_not_brought_up(&mut self) {
        self.fetches().runs(&[]);
        let copied = Copied { bytes: 1, folder: FolderId { device: 1, inode: 1 } };
        let copies = ["/srv/a", "/srv/b"].map(|of| CopyMade { source: source(of), copied });
        self.step_of_snapshot_ends(SnapshotStepped::Copied(copies.to_vec()));
        let up = Err(ComposeError::new("network shop not found"));
        let containers = vec![old_container()];
        self.step_ends(StepResult::Started { up, named: Vec::new(), containers });
        self.step_ends(StepResult::TagsRestored).step_ends(StepResult::Unpinned);
        let all = SnapshotStepped::Expired { left: Vec::new(), why: String::new() };
        let step = self.step_of_snapshot_ends(all);
        assert!(matches!(step, SnapshotStep::Expire { .. }), "{step:?}");
        assert_eq!(self.service.durable().deployment, None);
    }

    /// The new image runs and crashes, and the data is about to be put back.
    fn fails_with_data(&mut self) {
        self.check(update()).fetches().runs(&[]);
        let copied = Copied { bytes: 1, folder: FolderId { device: 1, inode: 1 } };
        let copies = ["/srv/a", "/srv/b"].map(|of| CopyMade { source: source(of), copied });
        self.step_of_snapshot_ends(SnapshotStepped::Copied(copies.to_vec()));
        let new = new_container();
        let containers = vec![new.clone()];
        self.step_ends(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers });
        let crashed = Container { state: State::Exited, exit_code: 1, ..new };
        self.look(&[&crashed]).at(5).look(&[&crashed]);
        self.step_ends(StepResult::Diagnosed { log: String::new() });
    }

    /// The first of the copies that are no longer kept can't be removed, as often as that is tried. Returns all of them.
    fn can_not_remove_the_first(&mut self) -> Vec<KeptFolder> {
        let mut all = Vec::new();
        for _ in 0..5 {
            let step = self.snapshot_step();
            let SnapshotStep::Expire { remove } = step else { panic!("nothing is removed, but {step:?}") };
            let why = "can't remove /srv/.a.evenkeel-1: busy".to_owned();
            let stepped = SnapshotStepped::Expired { left: remove[..1].to_vec(), why };
            self.input(Input::Stepped(StepResult::Snapshot(stepped)));
            self.now += SignedDuration::from_mins(10);
            all = remove;
        }
        assert_eq!(self.service.durable().deployment, None, "nothing waits for it");
        all
    }

    fn told(&self, kind: &Kind) -> Vec<&AuditEntry> {
        self.entries.iter().filter(|entry| entry.event == *kind).collect()
    }
}

#[test]
fn an_update_whose_data_could_not_be_copied_waits_longer_and_longer() {
    let mut scenario = with_data();
    let mut at = 0;
    for (nr, hours) in [1, 2, 4, 8, 16, 24, 24].into_iter().enumerate() {
        scenario.at(at).check(update()).can_not_copy();
        let errors = scenario.told(&Kind::ERROR);
        assert_eq!(errors.len(), nr + 1, "each outage is told: {errors:#?}");
        assert!(errors[nr].message.contains("nothing was deployed: /srv/a is full"), "{errors:#?}");
        scenario.now += SignedDuration::from_secs(300);
        scenario.check(update());
        assert_eq!(scenario.act(), None, "the service is not stopped again at the next poll");
        let waiting = scenario.record().waiting.expect("it waits");
        assert_eq!((waiting.gate.as_str(), waiting.clear.as_str()), ("snapshot", "POST /trigger/web"));
        assert!(waiting.why.contains("/srv/a is full"), "{}", waiting.why);
        let until = waiting.lifts_at.expect("it is tried again");
        assert_eq!(until.duration_since(scenario.now).as_hours(), hours - 1, "the {nr}. time");
        assert!(scenario.why().answer.contains("next attempt at"), "{}", scenario.why().answer);
        assert_eq!(scenario.record().errored, None);
        at = until.duration_since(scenario.start).as_secs() + 1;
    }
    let durable: Durable =
        serde_json::from_str(&serde_json::to_string(scenario.service.durable()).unwrap()).unwrap();
    assert_eq!(durable.images.get(IMAGE).not_copied.as_ref().map(|one| one.tries), Some(7));
}

#[test]
fn an_update_that_is_not_brought_up_after_the_copy_waits_longer_and_longer() {
    let mut scenario = with_data();
    let mut at = 0;
    for (nr, hours) in [1, 2, 4, 8, 16, 24, 24].into_iter().enumerate() {
        scenario.at(at).check(update()).is_not_brought_up();
        assert_eq!(scenario.told(&Kind::ERROR).len(), nr + 1, "each outage is told");
        let until = scenario.service.durable().postponed.first().expect("it waits").until;
        assert_eq!(until.duration_since(scenario.now).as_hours(), hours, "the {nr}. time");
        scenario.now += SignedDuration::from_secs(300);
        scenario.check(update());
        assert_eq!(scenario.act(), None, "the service is not stopped again at the next poll");
        let errored = scenario.record().errored.expect("it says why it waits");
        assert!(errored.contains("network shop not found"), "{errored}");
        assert!(scenario.why().answer.contains("the next attempt is at"), "{}", scenario.why().answer);
        assert_eq!(scenario.told(&Kind::ERROR).len(), nr + 1, "not at each poll");
        at = until.duration_since(scenario.start).as_secs() + 1;
    }
    scenario.trigger(update()).is_not_brought_up();
}

#[test]
fn copies_that_can_not_be_removed_are_told_of_and_removed_another_time() {
    let mut scenario = with_data();
    scenario.check(update()).stops_copying();
    assert!(scenario.service.may_check(), "a person can ask for a check while they are removed");
    scenario.can_not_remove_the_first();
    let entry = scenario.told(&Kind::ERROR).pop().expect("it is told");
    assert_eq!(entry.level, Level::Warning);
    assert!(entry.message.ends_with("can't be removed"), "{entry:?}");
    let reason = entry.reason.clone().unwrap_or_default();
    assert!(reason.starts_with("can't remove /srv/.a.evenkeel-1: busy; they take up room"), "{reason}");
    let left = &scenario.service.durable().snapshots;
    assert!(matches!(&left[..], [one] if one.is_expired), "it is tried again: {left:?}");
}

#[test]
fn one_copy_that_can_not_be_removed_does_not_make_the_state_grow_with_every_update() {
    let mut scenario = with_data();
    scenario.check(update()).stops_copying();
    let first = scenario.can_not_remove_the_first();
    for _ in 0..3 {
        scenario.trigger(update()).stops_copying();
        let all = scenario.can_not_remove_the_first();
        assert_eq!(all.len(), 2 * first.len(), "what was removed is forgotten: {all:?}");
        let left = &scenario.service.durable().snapshots;
        assert!(matches!(&left[..], [one] if one.all_folders() == first), "{left:?}");
    }
}

#[test]
fn a_person_or_another_digest_ends_the_wait_for_another_copy() {
    let mut scenario = with_data();
    scenario.check(update()).can_not_copy();
    scenario.at(300).check(update());
    assert_eq!(scenario.act(), None);
    scenario.trigger(update());
    scenario.can_not_copy();
    scenario.at(900).check(update());
    assert_eq!(scenario.act(), None, "it has failed again");
    let mut other = update();
    other.images[0].remote = Some(digest('3'));
    scenario.at(1200).check(other);
    scenario.fetches().runs(&[]);
    let copied = Copied { bytes: 1, folder: FolderId { device: 1, inode: 1 } };
    let copies = vec![CopyMade { source: source("/srv/a"), copied }];
    scenario.step_of_snapshot_ends(SnapshotStepped::Copied(copies));
    assert_eq!(scenario.service.durable().images.get(IMAGE).not_copied, None, "it can be copied");
}

#[test]
fn a_container_that_comes_back_under_another_id_is_the_same_and_copies_are_made_so_often() {
    let mut scenario = with_data();
    let first = scenario.check(update()).fetches().runs(&[mounter("1", "task")]);
    assert!(matches!(first, SnapshotStep::Quiesce { measures: true, .. }), "{first:?}");
    for nr in 2..=4 {
        let SnapshotStep::Quiesce { stop, measures, .. } = scenario.runs(&[]) else {
            panic!("it is not stopped")
        };
        assert!(!measures, "the service is down already");
        assert_eq!(stop, [mounter(&(nr - 1).to_string(), "task")], "the last of its name");
        let copies = scenario.runs(&[mounter(&nr.to_string(), "task")]);
        assert!(matches!(copies, SnapshotStep::Copy { .. }), "{copies:?}");
    }
    let error = scenario.told(&Kind::ERROR).pop().expect("it is told");
    assert!(error.message.ends_with("task does not stay stopped"), "{error:?}");
    scenario.step_ends(StepResult::TagsRestored);
    let SnapshotStep::Resume { start, .. } = scenario.snapshot_step() else { panic!("it stays stopped") };
    assert_eq!(start, [mounter("4", "task")]);
}

#[test]
fn containers_that_always_start_again_end_the_update_before_anything_is_copied() {
    let mut scenario = with_data();
    scenario.check(update()).fetches();
    let mut rounds = 0;
    while scenario.told(&Kind::ERROR).is_empty() {
        rounds += 1;
        assert!(rounds < 20, "it goes on and on");
        scenario.runs(&[mounter(&rounds.to_string(), &format!("cron-{rounds}"))]);
    }
    assert!(rounds > 3, "a few may start meanwhile: {rounds}");
    let error = scenario.told(&Kind::ERROR).pop().expect("it is told");
    assert!(error.message.ends_with(&format!("cron-{rounds} does not stay stopped")), "{error:?}");
}

#[test]
fn containers_that_are_not_started_again_are_told_of() {
    let mut scenario = with_data();
    scenario.check(update()).fetches().runs(&[mounter("1", "backup"), mounter("2", "cron")]);
    scenario.runs(&[]);
    scenario.snapshot_step();
    for _ in 0..2 {
        scenario.input(Input::Stepped(StepResult::Failed("/srv/a is full".into())));
        scenario.now += SignedDuration::from_mins(1);
        scenario.act();
    }
    scenario.input(Input::Stepped(StepResult::TagsRestored));
    let not_started = |name: &str, why: &str| NotStarted { name: name.into(), why: why.into() };
    let not_started = vec![not_started("backup", "its port is taken"), not_started("cron", "it is gone")];
    scenario.step_of_snapshot_ends(SnapshotStepped::Resumed { containers: Vec::new(), not_started });
    let entry = scenario.told(&Kind::ERROR).pop().expect("it is told");
    assert_eq!(entry.level, Level::Warning);
    assert!(entry.message.ends_with("backup, cron"), "{entry:?}");
    assert_eq!(entry.reason.as_deref(), Some("backup: its port is taken; cron: it is gone"));
}

#[test]
fn nothing_is_started_on_data_of_which_a_part_was_put_back() {
    for is_mixed in [true, false] {
        let mut scenario = with_data();
        scenario.fails_with_data();
        let step = scenario.runs(&[mounter("web-2", "web-1"), mounter("9", "backup")]);
        assert!(matches!(step, SnapshotStep::Restore { .. }), "{step:?}");
        for _ in 0..5 {
            let why = "can't put back /srv/b".to_owned();
            let result = if is_mixed {
                StepResult::Snapshot(SnapshotStepped::Mixed { why })
            } else {
                StepResult::Failed(why)
            };
            scenario.snapshot_step();
            scenario.input(Input::Stepped(result));
            scenario.now += SignedDuration::from_mins(10);
        }
        let entry = scenario.told(&Kind::ROLLBACK_FAILED).pop().expect("a person has to act");
        let reason = entry.reason.clone().unwrap_or_default();
        assert_eq!(reason.contains("these stay stopped: web-1, backup"), is_mixed, "{reason}");
        let next = scenario.act();
        match next {
            Some(Action::Step(Step::Unpin { .. })) => assert!(is_mixed, "what was stopped stays stopped"),
            Some(Action::Step(Step::Snapshot(SnapshotStep::Resume { start, .. }))) => {
                assert!(!is_mixed, "{start:?} would run on mixed data");
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Scenario {
    /// The data can't be put back as often as it is tried, so that the new image runs on.
    fn can_not_put_back(&mut self) {
        for _ in 0..5 {
            assert!(matches!(self.snapshot_step(), SnapshotStep::Restore { .. }));
            self.input(Input::Stepped(StepResult::Failed("can't put back /srv/b".into())));
            self.now += SignedDuration::from_mins(10);
        }
        self.step_ends(StepResult::Unpinned);
        assert_eq!(self.service.durable().deployment, None);
        assert_eq!(self.told(&Kind::ROLLBACK_FAILED).len(), 1);
        self.entries.clear();
    }

    fn person_asks(&mut self, request: ServiceRequest) -> ServiceReply {
        let (reply, entries) = self.service.handle_request(request, self.now);
        self.entries.extend(entries);
        reply
    }
}

/// What is seen while the new image runs, and the registry still has it.
fn new_runs() -> Observation {
    Observation { snapshot: update().snapshot, ..observed('2', &[local(NEW, &['2'])], &[&new_container()]) }
}

#[test]
fn the_earlier_image_is_not_restored_on_data_of_the_new_one_that_could_not_be_put_back() {
    let mut scenario = with_data();
    scenario.fails_with_data();
    scenario.can_not_put_back();
    scenario.trigger(new_runs());
    assert_eq!(scenario.act(), None, "the earlier image would run on the data of the new one");
    let entry = scenario.told(&Kind::ROLLBACK_FAILED).pop().expect("it is told");
    let reason = entry.reason.clone().unwrap_or_default();
    assert!(reason.contains("`evenkeel rollback web --data` goes back together with the data"), "{reason}");
    assert!(reason.contains("which is in /srv/.a.evenkeel-"), "{reason}");

    scenario.person_asks(ServiceRequest::Redeploy);
    scenario.check(new_runs());
    assert_eq!(scenario.act(), None);
    let entry = scenario.told(&Kind::FORCE_REDEPLOY_FAILED).pop().expect("it is told");
    assert!(format!("{entry:?}").contains("`evenkeel rollback web --data`"), "{entry:?}");

    // Somebody has put the data back, and started the earlier image on it.
    scenario.check(update());
    assert_eq!(scenario.service.durable().snapshots[0].pending, None);
}

#[test]
fn a_person_goes_back_from_an_image_that_failed_together_with_the_data() {
    for works in [true, false] {
        let mut scenario = with_data();
        scenario.fails_with_data();
        scenario.can_not_put_back();
        let reply = scenario.person_asks(ServiceRequest::Rollback { to: None, data: true });
        assert_eq!(reply, ServiceReply::RollingBack(digest('1')));
        let identity = FolderId { device: 1, inode: 1 };
        let mut seen = new_runs();
        let Some(Ok(data)) = &mut seen.snapshot else { unreachable!() };
        data.earlier = Some((scenario.service.durable().snapshots[0].earlier(), vec![identity, identity]));
        scenario.check(seen).step_ends(StepResult::ImagesPinned { missing: Vec::new() });
        let ids = vec![(IMAGE.into(), ImageId(OLD.into()))];
        scenario.step_ends(StepResult::Pulled { ids, labels: BTreeMap::new() });
        assert!(matches!(scenario.runs(&[]), SnapshotStep::Quiesce { .. }));
        let step = scenario.step_of_snapshot_ends(SnapshotStepped::Done);
        assert!(matches!(step, SnapshotStep::Restore { .. }), "the data goes back first: {step:?}");
        let old = Container { id: "web-3".into(), ..old_container() };
        let up = |on: &Container| StepResult::Started {
            up: Ok(String::new()),
            named: Vec::new(),
            containers: vec![on.clone()],
        };
        scenario.step_ends(up(&old));
        if works {
            scenario.look(&[&old]);
            scenario.now += SignedDuration::from_secs(20);
            scenario.look(&[&old]);
            assert_eq!(scenario.told(&Kind::ROLLED_BACK).len(), 1, "{:#?}", scenario.entries);
            assert_eq!(scenario.service.durable().images.get(IMAGE).unproven, None);
            continue;
        }
        let crashed = Container { state: State::Exited, exit_code: 1, ..old };
        scenario.look(&[&crashed]);
        scenario.now += SignedDuration::from_secs(5);
        scenario.look(&[&crashed]).step_ends(StepResult::Diagnosed { log: String::new() });
        let step = scenario.step_of_snapshot_ends(SnapshotStepped::Done);
        assert!(matches!(step, SnapshotStep::UndoRestore { .. }), "{step:?}");
        scenario.step_ends(up(&new_container()));
        scenario.look(&[&new_container()]);
        scenario.now += SignedDuration::from_secs(20);
        scenario.look(&[&new_container()]);
        let memory = scenario.service.durable().images.get(IMAGE);
        let (proven, unproven) = (memory.proven.as_ref().map(|one| &*one.id.0), memory.unproven.as_ref());
        assert_eq!((proven, unproven.map(|id| &*id.0)), (Some(OLD), Some(NEW)), "it failed before");
        assert_eq!(scenario.told(&Kind::ROLLBACK_FAILED).len(), 1, "{:#?}", scenario.entries);
        assert!(scenario.service.durable().rollback_failed, "it still needs a person");
    }
}

impl Scenario {
    /// The containers of the image come up.
    fn comes_up_with_data(&mut self, on: &Container) -> &mut Self {
        let containers = vec![on.clone()];
        self.step_ends(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers });
        self.look(&[on])
    }

    /// Somebody pauses the new container, so that its probation proves nothing.
    fn is_paused_on_probation(&mut self) {
        self.comes_up_with_data(&new_container());
        self.now += SignedDuration::from_secs(20);
        self.look(&[&Container { state: State::Paused, ..new_container() }]);
        self.step_ends(StepResult::Unpinned);
        assert_eq!(self.service.durable().deployment, None);
        let memory = self.service.durable().images.get(IMAGE);
        assert_eq!(memory.unproven, Some(ImageId(NEW.into())));
    }

    /// The data is copied, and the new image, which has written to it since, is not proven.
    fn is_left_unproven_with_data(&mut self) {
        self.check(update()).fetches().runs(&[]);
        let copied = Copied { bytes: 1, folder: FolderId { device: 1, inode: 1 } };
        let copies = ["/srv/a", "/srv/b"].map(|of| CopyMade { source: source(of), copied });
        self.step_of_snapshot_ends(SnapshotStepped::Copied(copies.to_vec()));
        self.is_paused_on_probation();
    }
}

#[test]
fn data_that_an_unproven_image_has_written_is_not_copied_as_that_of_the_image_before() {
    for works in [true, false] {
        let mut scenario = with_data();
        scenario.is_left_unproven_with_data();
        let first = scenario.service.durable().snapshots.clone();
        let [kept] = &first[..] else { panic!("{first:?}") };
        // The next check goes through the probation again.
        scenario.now += SignedDuration::from_mins(5);
        scenario.check(new_runs());
        assert!(scenario.service.way_back(None, true).is_ok(), "a person may go back together with the data");
        scenario.fetches().comes_up_with_data(&new_container());
        if works {
            scenario.now += SignedDuration::from_secs(20);
            scenario.look(&[&new_container()]).step_ends(StepResult::Unpinned);
            assert_eq!(scenario.told(&Kind::UPDATED).len(), 1, "{:#?}", scenario.entries);
            let proven = KeptSnapshot { pending: None, ..kept.clone() };
            assert_eq!(scenario.service.durable().snapshots, [proven]);
            let data = scenario.service.data_of(&[(IMAGE, &digest('1'))]);
            assert_eq!(data.map(|data| &data.id), Some(&kept.id), "what a rollback by hand puts back");
            continue;
        }
        let crashed = Container { state: State::Exited, exit_code: 1, ..new_container() };
        scenario.look(&[&crashed]);
        scenario.now += SignedDuration::from_secs(5);
        scenario.look(&[&crashed]).step_ends(StepResult::Diagnosed { log: String::new() });
        let step = scenario.step_of_snapshot_ends(SnapshotStepped::Done);
        let SnapshotStep::Restore { copies, .. } = step else { panic!("{step:?}") };
        let put_back: Vec<_> = copies.iter().map(|(_, place)| &place.copy).collect();
        let folders: Vec<_> = kept.folders.iter().map(|folder| &folder.folder).collect();
        assert_eq!(put_back, folders, "the copies of the first attempt");
        let old = Container { id: "web-3".into(), ..old_container() };
        scenario.comes_up_with_data(&old);
        scenario.now += SignedDuration::from_secs(20);
        scenario.look(&[&old]).step_ends(StepResult::Unpinned);
        let entry = scenario.told(&Kind::ROLLED_BACK).pop().expect("it is told");
        let at = kept.at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
        assert!(format!("{entry:?}").contains(&format!("the data of {at} was put back")), "{entry:?}");
        let step = scenario.step_of_snapshot_ends(SnapshotStepped::Done);
        assert!(matches!(step, SnapshotStep::Expire { .. }), "{step:?}");
    }
}

#[test]
fn the_copy_of_the_data_of_the_image_before_is_kept_until_the_new_one_is_proven() {
    let mut scenario = with_data();
    scenario.is_left_unproven_with_data();
    let first = scenario.service.durable().snapshots[0].clone();
    for nr in 1..=2 {
        let newer =
            KeptSnapshot { id: format!("newer-{nr}"), at: scenario.now, pending: None, ..first.clone() };
        scenario.service.durable.snapshots.push(newer);
    }
    scenario.now += SignedDuration::from_mins(5);
    scenario.check(new_runs()).fetches().is_paused_on_probation();
    let snapshots = &scenario.service.durable().snapshots;
    assert!(snapshots.contains(&first), "two newer ones are kept beside it: {snapshots:?}");
    assert!(snapshots.iter().all(|kept| !kept.is_expired), "{snapshots:?}");
}

#[test]
fn an_image_that_failed_is_not_started_on_data_that_was_put_back() {
    let changed = old_container().compose_service;
    let mut scenario = with_data();
    scenario.fails_with_data();
    let worker = of_project("worker", "worker", &[&changed]);
    scenario.runs(&[of_project("web-2", &changed, &[]), worker.clone()]);
    assert!(matches!(scenario.step_of_snapshot_ends(SnapshotStepped::Done), SnapshotStep::Restore { .. }));
    for _ in 0..5 {
        let action = scenario.act();
        assert!(matches!(action, Some(Action::Step(Step::Start(_)))), "{action:?}");
        scenario.input(Input::Stepped(StepResult::Failed("compose could not be started".into())));
        scenario.now += SignedDuration::from_mins(10);
    }
    let entry = scenario.told(&Kind::ROLLBACK_FAILED).pop().expect("a person has to act");
    let reason = entry.reason.clone().unwrap_or_default();
    assert!(reason.contains("was put back; what was in its place is kept in /srv/.a.evenkeel-"), "{reason}");
    assert!(reason.contains("these stay stopped, since no image that failed"), "{reason}");
    assert!(reason.ends_with(": web-2"), "{reason}");
    let SnapshotStep::Resume { start, .. } = scenario.snapshot_step() else { panic!("nothing is started") };
    assert_eq!(start, [worker], "the rest runs again");
}

#[test]
fn data_is_put_back_again_if_something_was_started_on_it_meanwhile() {
    let mut scenario = with_data();
    scenario.fails_with_data();
    let cron = mounter("9", "cron");
    scenario.step_of_snapshot_ends(SnapshotStepped::Disturbed(vec![cron.clone()]));
    let step = scenario.step_of_snapshot_ends(SnapshotStepped::Done);
    let SnapshotStep::Restore { stop, .. } = step else { panic!("{step:?}") };
    assert_eq!(stop, [cron]);

    let mut scenario = with_data();
    scenario.fails_with_data();
    let new = of_project("web-2", &old_container().compose_service, &[]);
    scenario.runs(&[new]);
    let mut rounds = 0;
    while scenario.told(&Kind::ROLLBACK_FAILED).is_empty() {
        rounds += 1;
        assert!(rounds < 20, "it goes on and on");
        let cron = mounter(&rounds.to_string(), "cron");
        scenario.step_of_snapshot_ends(SnapshotStepped::Disturbed(vec![cron]));
    }
    let entry = scenario.told(&Kind::ROLLBACK_FAILED).pop().expect("it is told");
    let reason = entry.reason.clone().unwrap_or_default();
    assert!(reason.contains("may have written to it meanwhile: cron does not stay stopped"), "{reason}");
    assert!(reason.ends_with(": web-2"), "{reason}");
}

#[test]
fn who_goes_back_needs_no_room_to_spare() {
    let mut scenario = with_data();
    let mut seen = update();
    let Some(Ok(data)) = &mut seen.snapshot else { unreachable!() };
    // It shares its blocks with the copy, and the new image has filled the disk.
    data.rooms = vec![(
        "/srv".into(),
        Room { bytes: 1 << 30, available: 0, is_shared: true, copies: 1, ..Room::default() },
    )];
    scenario.check(seen);
    let back = Cause::GoBack(GoBack { to: Vec::new(), data: None, why: GoBackReason::ByHand });
    assert!(scenario.service.plan_snapshot(&back, &[], scenario.now).unwrap().is_some());
    let why = scenario.service.plan_snapshot(&Cause::Update, &[], scenario.now).unwrap_err();
    assert!(why.contains("to spare"), "{why}");
}

#[test]
fn the_data_is_not_measured_for_a_blocked_digest_unless_somebody_asks() {
    let mut scenario = with_data();
    scenario.service.durable.images.of(IMAGE).blocked = Some(digest('2'));
    for is_manual in [false, true] {
        let withheld: Vec<_> = scenario.next_check_asks(is_manual).withheld.into_iter().collect();
        let expected = if is_manual { Vec::new() } else { vec![(IMAGE.to_owned(), digest('2'))] };
        assert_eq!(withheld, expected);
    }
}

#[test]
fn data_with_enough_room_is_measured_once_an_hour_while_its_update_waits() {
    let rules = SnapshotRules { of: vec!["/srv/a".into(), "/srv/b".into()], keep: 2, max_bytes: 1 << 30 };
    let gated = UpdateConfig { snapshot: Some(rules), approve: true, ..UpdateConfig::default() };
    let mut scenario = Scenario::of(ServiceConfig { update: Some(Arc::new(gated)), ..config() });
    let measures =
        |scenario: &mut Scenario, is_manual: bool| scenario.next_check_asks(is_manual).measured.is_empty();
    assert!(measures(&mut scenario, false), "nothing is known");
    scenario.check(update());
    for (seconds, expected) in [(0, false), (3599, false), (3600, true), (3601, false)] {
        assert_eq!(measures(scenario.at(seconds), false), expected, "after {seconds} s");
        scenario.check(update());
    }
    let mut full = update();
    let Some(Ok(data)) = &mut full.snapshot else { unreachable!() };
    data.rooms = vec![(
        "/srv".into(),
        Room { bytes: 1 << 20, available: 0, is_shared: false, copies: 1, ..Room::default() },
    )];
    scenario.check(full);
    assert!(measures(&mut scenario, false), "somebody may have made room");
    scenario.check(update());
    assert!(!measures(&mut scenario, false));
    let (generation, fault) = (scenario.service.generation, CheckFault::Failed("no answer".into()));
    scenario.input(Input::Checked { generation, is_manual: false, result: Err(fault) });
    assert!(measures(&mut scenario, false), "what is known may be older by now");
    scenario.check(update());
    assert!(measures(&mut scenario, true), "somebody asks");
}

#[test]
fn a_rollback_by_hand_keeps_the_dump_that_it_may_need() {
    let rules = SnapshotRules { of: Vec::new(), keep: 1, max_bytes: 1 << 30 };
    let before = vec!["/hooks/dump".to_owned()];
    let hooks =
        Hooks { before, after: Vec::new(), rolled_back: Vec::new(), timeout: Duration::from_mins(10) };
    let update = UpdateConfig { snapshot: Some(rules), hooks: Some(hooks), ..UpdateConfig::default() };
    let mut scenario = Scenario::of(ServiceConfig { update: Some(Arc::new(update)), ..config() });
    let seen = |image: &str, nr: char, runs: Container| {
        let dumps = "/state".into();
        let data = SnapshotSeen { sources: Vec::new(), rooms: Vec::new(), dumps, earlier: None };
        Observation { snapshot: Some(Ok(data)), ..observed('2', &[local(image, &[nr])], &[&runs]) }
    };
    scenario.check(seen(OLD, '1', old_container())).step_ends(StepResult::HookEnded(Ok(None)));
    scenario.fetches().proves_without_copies(&new_container());
    let kept = scenario.service.durable().snapshots.clone();
    assert!(matches!(&kept[..], [one] if one.dump.is_some() && !one.is_expired), "{kept:?}");

    let request = ServiceRequest::Rollback { to: None, data: false };
    let (reply, _) = scenario.service.handle_request(request, scenario.now);
    assert_eq!(reply, ServiceReply::RollingBack(digest('1')));
    scenario.check(seen(NEW, '2', new_container()));
    scenario.step_ends(StepResult::ImagesPinned { missing: Vec::new() });
    let ids = vec![(IMAGE.into(), ImageId(OLD.into()))];
    scenario.step_ends(StepResult::Pulled { ids, labels: BTreeMap::new() });
    scenario.proves_without_copies(&Container { id: "web-3".into(), ..old_container() });
    assert_eq!(scenario.told(&Kind::ROLLED_BACK).len(), 1);
    assert_eq!(scenario.service.durable().deployment, None, "nothing is to be removed");
    assert_eq!(scenario.service.durable().snapshots, kept);
}

impl Scenario {
    /// Nothing is copied, and the container comes up and is proven.
    fn proves_without_copies(&mut self, on: &Container) {
        self.runs(&[]);
        self.step_of_snapshot_ends(SnapshotStepped::Copied(Vec::new()));
        let containers = vec![on.clone()];
        self.step_ends(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers });
        self.look(&[on]);
        self.now += SignedDuration::from_secs(20);
        self.look(&[on]).step_ends(StepResult::Unpinned);
    }
}

/// A container of the project.
fn of_project(id: &str, service: &str, depends_on: &[&str]) -> Mounter {
    Mounter {
        service: ("web".into(), service.into()),
        depends_on: depends_on.iter().map(|name| (*name).to_owned()).collect(),
        ..mounter(id, id)
    }
}

#[test]
fn what_the_images_may_need_is_started_before_them_in_both_directions() {
    let changed = old_container().compose_service;
    let (old, db) = (of_project("old", &changed, &["db"]), of_project("db", "db", &[]));
    let worker = of_project("worker", "worker", &[&changed]);
    let copied = Copied { bytes: 1, folder: FolderId { device: 1, inode: 1 } };
    let copies = ["/srv/a", "/srv/b"].map(|of| CopyMade { source: source(of), copied }).to_vec();
    let resumed = |containers: &[Container]| SnapshotStepped::Resumed {
        containers: containers.to_vec(),
        not_started: Vec::new(),
    };
    let starts = |step: SnapshotStep| match step {
        SnapshotStep::Resume { start, .. } => start.into_iter().map(|one| one.id).collect::<Vec<_>>(),
        other => panic!("nothing is started, but {other:?}"),
    };
    let mut scenario = with_data();
    scenario.check(update()).fetches();
    scenario.runs(&[old.clone(), db.clone(), worker.clone()]);
    scenario.runs(&[]);
    scenario.step_of_snapshot_ends(SnapshotStepped::Copied(copies));
    assert_eq!(starts(scenario.step_of_snapshot_ends(resumed(&[]))), ["db"]);
    let new = new_container();
    let up = |on: &Container| StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![on.clone()],
    };
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
    scenario.input(Input::Stepped(up(&new)));
    assert_eq!(
        starts(scenario.step_of_snapshot_ends(resumed(std::slice::from_ref(&new)))),
        ["old", "worker"]
    );

    let crashed = Container { state: State::Exited, exit_code: 1, ..new };
    scenario.look(&[&crashed]).at(5).look(&[&crashed]);
    scenario.step_ends(StepResult::Diagnosed { log: String::new() });
    let step = scenario.runs(&[of_project("new", &changed, &["db"]), db]);
    assert!(matches!(step, SnapshotStep::Restore { .. }), "{step:?}");
    scenario.step_of_snapshot_ends(SnapshotStepped::Done);
    // It is in the journal, and survives the agent.
    let durable = serde_json::to_string(scenario.service.durable()).unwrap();
    assert_eq!(serde_json::from_str::<Durable>(&durable).unwrap(), *scenario.service.durable());
    // It can't be started now, and the old image is brought up nevertheless.
    let not_started = vec![NotStarted { name: "db".into(), why: "its network is gone".into() }];
    let step =
        scenario.step_of_snapshot_ends(SnapshotStepped::Resumed { containers: Vec::new(), not_started });
    assert_eq!(starts(step), ["db"]);
    assert!(scenario.told(&Kind::ERROR).is_empty(), "it is tried again");
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
    scenario.input(Input::Stepped(up(&old_container())));
    assert_eq!(starts(scenario.step_of_snapshot_ends(resumed(&[old_container()]))), ["new", "db"]);
}

#[test]
fn an_update_that_has_stopped_its_service_for_a_snapshot_goes_ahead_of_the_others() {
    let mut scenario = with_data();
    scenario.check(update()).fetches();
    scenario.runs(&[of_project("web-1", &old_container().compose_service, &[])]);
    scenario.runs(&[]);
    let copied = Copied { bytes: 1, folder: FolderId { device: 1, inode: 1 } };
    let copies = ["/srv/a", "/srv/b"].map(|of| CopyMade { source: source(of), copied });
    scenario.step_of_snapshot_ends(SnapshotStepped::Copied(copies.to_vec()));
    let Some(Action::Step(Step::Start(BringUp { priority, .. }))) = scenario.act() else {
        panic!("the new image is not brought up")
    };
    assert_eq!(priority, Priority::Urgent);
}

#[test]
fn a_resumption_in_a_journal_of_an_earlier_version_comes_after_the_images() {
    let phase: Phase = serde_json::from_str(r#"{"step":"resume"}"#).unwrap();
    assert_eq!(phase, Phase::Resume { failed: None, is_early: false });
    assert_eq!(serde_json::to_string(&phase).unwrap(), r#"{"step":"resume"}"#);
}
