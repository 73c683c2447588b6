//! Tests of the compose runner with small shell scripts in place of `docker`.

mod secrets;
mod turns;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::adapters::docker::Endpoint;

/// A folder with a compose file and a script that stands in for `docker compose`.
struct Stage {
    folder: TempDir,
}

impl Stage {
    /// A script that stands in for compose and reports a supported version.
    fn new(script: &str) -> Self {
        Self::of_version("Docker Compose version v2.40.3", script)
    }

    fn of_version(version: &str, script: &str) -> Self {
        let asked = format!("test \"$1\" = version && {{ echo '{version}'; exit 0; }}\n");
        Self::scripted(&(asked + script))
    }

    /// A script that handles all commands, `version` included.
    fn scripted(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The program is the shell, which runs the file named by the first argument, `compose`. An executable script
        // could still be open for writing in a child that another test has just forked.
        fs::write(folder.path().join("compose"), script).unwrap();
        fs::write(folder.path().join("compose.yml"), "services: {}\n").unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn project(&self) -> Project {
        Project {
            name: "shop".into(),
            files: vec![self.path("compose.yml")],
            env_file: None,
            ..Project::default()
        }
    }

    fn project_with_env(&self, text: &str) -> Project {
        fs::write(self.path("vars.env"), text).unwrap();
        Project { env_file: Some(self.path("vars.env")), ..self.project() }
    }

    /// Waits until the script has written the file.
    async fn written(&self, name: &str) -> String {
        let wait = async {
            loop {
                let text = self.read(name);
                if text.ends_with('\n') {
                    return text.trim().to_owned();
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_mins(1), wait).await.unwrap_or_else(|_| panic!("{name} was never written"))
    }
}

/// A runner that executes the script of a stage: the shell runs the file named by the first argument, `compose`.
fn scripted() -> ComposeCli {
    ComposeCli { program: "/bin/sh".into(), ..cli(Runtime::Docker) }
}

fn cli(runtime: Runtime) -> ComposeCli {
    let path = std::env::var_os("PATH").unwrap();
    let environment = [
        ("PATH", path),
        ("HOME", "/home/agent".into()),
        ("https_proxy", "http://proxy:1".into()),
        ("NOTIFY_SOCKET", "/run/notify".into()),
        ("DOCKER_CONTEXT", "other".into()),
        ("DOCKER_API_VERSION", "1.20".into()),
        ("COMPOSE_PROJECT_NAME", "other".into()),
        ("SECRET", "of the agent".into()),
        ("FOO", "of the agent".into()),
        ("BAR", "bar".into()),
    ];
    let endpoint = Endpoint::Unix("/run/test.sock".into());
    ComposeCli::new(runtime, &endpoint, environment.map(|(name, value)| (name.into(), value)))
}

/// Reports whether a process is running. Zombies do not count.
fn runs(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z")))
}

async fn wait_for_exit(pid: &str) {
    for _ in 0..200 {
        if !runs(pid) {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("process {pid} still runs");
}

fn words(arguments: Vec<OsString>) -> String {
    arguments.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
}

#[test]
fn arguments_are_in_an_order_that_every_compose_accepts() {
    let project = Project {
        name: "shop".into(),
        files: vec!["/srv/a.yml".into(), "/srv/b.yml".into()],
        env_file: Some("/srv/x.env".into()),
        ..Project::default()
    };
    let line = |runtime, up_mode: &UpMode| {
        let task = up_task(&project, up_mode, PullPolicy::Never);
        let task: Vec<&str> = task.iter().map(String::as_str).collect();
        words(cli(runtime).arguments(&project, &task))
    };
    assert_eq!(
        line(Runtime::Docker, &UpMode::Changed),
        "compose -p shop -f /srv/a.yml -f /srv/b.yml --progress quiet up -d --pull never --no-build"
    );
    assert_eq!(
        line(Runtime::Podman, &UpMode::All),
        "compose -p shop -f /srv/a.yml -f /srv/b.yml up -d --pull never --no-build --force-recreate"
    );
    let services = UpMode::ScaledServices {
        names: vec!["follower".into(), "web".into()],
        replicas: [("web".to_owned(), 3)].into(),
        with_dependencies: false,
        keeps_containers: false,
    };
    assert!(
        line(Runtime::Docker, &services)
            .ends_with(" up -d --pull never --no-build --scale web=3 --no-deps follower web")
    );
    let beside = UpMode::ScaledServices {
        names: vec!["web".into()],
        replicas: [("web".to_owned(), 2)].into(),
        with_dependencies: true,
        keeps_containers: true,
    };
    assert!(
        line(Runtime::Docker, &beside)
            .ends_with(" up -d --pull never --no-build --scale web=2 --no-recreate web")
    );
    assert!(
        line(Runtime::Docker, &UpMode::ForceService("db".into())).ends_with(" --force-recreate --no-deps db")
    );
}

#[test]
fn kept_counts_and_services_of_profiles_are_named_to_compose() {
    let project = Project {
        kept_counts: [("db".to_owned(), 1), ("worker".to_owned(), 5)].into(),
        all_services: vec!["tool".into(), "web".into()],
        ..Project::default()
    };
    let line = |up_mode: UpMode| up_task(&project, &up_mode, PullPolicy::Never).join(" ");
    let table = [
        (UpMode::Changed, "up -d --pull never --no-build --scale db=1 --scale worker=5 tool web"),
        (
            UpMode::All,
            "up -d --pull never --no-build --force-recreate --scale db=1 --scale worker=5 tool web",
        ),
        (UpMode::StartOnly, "start tool web"),
        (UpMode::StartServices(vec!["worker".into()]), "start worker"),
        (
            UpMode::ForceService("worker".into()),
            "up -d --pull never --no-build --force-recreate --scale worker=5 --no-deps worker",
        ),
        (
            UpMode::Services(vec!["web".into(), "worker".into()]),
            "up -d --pull never --no-build --scale worker=5 --no-deps web worker",
        ),
    ];
    for (up_mode, expected) in table {
        assert_eq!(line(up_mode), expected);
    }
}

#[test]
fn profiles_are_named_before_the_subcommand() {
    let project = Project {
        name: "shop".into(),
        files: vec!["/srv/a.yml".into()],
        profiles: ["local".to_owned(), "prod".to_owned()].into(),
        all_services: vec!["db".into(), "web".into()],
        ..Project::default()
    };
    for (up_mode, task) in [
        (UpMode::Changed, "up -d --pull never --no-build db web"),
        (UpMode::Services(vec!["web".into()]), "up -d --pull never --no-build --no-deps web"),
        (UpMode::StartOnly, "start db web"),
    ] {
        let words_of = up_task(&project, &up_mode, PullPolicy::Never);
        let words_of: Vec<&str> = words_of.iter().map(String::as_str).collect();
        let expected = format!("compose -p shop -f /srv/a.yml --profile local --profile prod {task}");
        assert_eq!(words(cli(Runtime::Podman).arguments(&project, &words_of)), expected);
    }
}

#[tokio::test]
async fn files_are_valid_if_a_service_depends_on_one_of_a_profile_and_not_if_nothing_renders_them() {
    let undefined = "echo 'service \"web\" depends on undefined service \"db\"' >&2; exit 1";
    let stage = Stage::new(&format!("case \"$*\" in *'--profile *'*) exit 0;; esac; {undefined}"));
    assert_eq!(scripted().validate(&stage.project()).await, Ok(()));
    let stage = Stage::new(undefined);
    let error = scripted().validate(&stage.project()).await.unwrap_err();
    assert!(error.cause.contains("undefined service"), "{error:?}");
}

#[tokio::test]
async fn active_services_are_those_that_compose_names() {
    let stage = Stage::new("echo \"$*\" > args.txt; printf 'web\\ndb\\n'");
    let active = scripted().active_services(&stage.project()).await.unwrap();
    assert_eq!(active, BTreeSet::from(["db".to_owned(), "web".to_owned()]));
    assert!(stage.read("args.txt").ends_with(" config --services\n"), "{}", stage.read("args.txt"));
}

#[tokio::test]
async fn compose_runs_with_the_filtered_environment_in_the_first_files_folder() {
    let stage = Stage::new("env | sort > env.txt; pwd > pwd.txt; cat > stdin.txt");
    let project = stage.project_with_env(
        "TAG=v2\nSHELL_NAME=\"a b\"\nCOMPOSE_PROFILES=blue\nDOCKER_HOST=tcp://evil:1\nDOCKER_CONTEXT=evil\n\
         PATH=/evil\nLD_PRELOAD=/evil.so\nHOME=/evil\nCOMPOSE_PROJECT_NAME=evil\nFOO=of the file\nSEEN=$SECRET.$BAR\n",
    );
    let compose = scripted();
    compose.withhold(&BTreeSet::from(["SECRET".to_owned()]));
    compose.up(&project, &UpMode::Changed, PullPolicy::Never).await.unwrap();
    let own = ["_=", "SHLVL=", "OLDPWD=", "PATH="];
    let folder = stage.folder.path().canonicalize().unwrap();
    let pwd = format!("PWD={}", folder.display());
    let env = stage.read("env.txt");
    let seen: Vec<_> = env.lines().filter(|line| !own.iter().any(|own| line.starts_with(own))).collect();
    assert_eq!(
        seen,
        [
            "BAR=bar",
            "COMPOSE_PROFILES=blue",
            "COMPOSE_REMOVE_ORPHANS=false",
            "DOCKER_HOST=unix:///run/test.sock",
            "FOO=of the file",
            "HOME=/home/agent",
            &*pwd,
            "SEEN=.bar",
            "SHELL_NAME=a b",
            "TAG=v2",
            "https_proxy=http://proxy:1"
        ]
    );
    assert!(!env.contains("evil"), "{env}");
    assert_eq!(stage.read("pwd.txt").trim(), folder.to_str().unwrap());
    assert_eq!(stage.read("stdin.txt"), "");
}

/// A shell would set it itself, so this is what compose gets.
#[test]
fn compose_finds_the_project_directory_in_pwd_whatever_the_agent_was_started_in() {
    let compose = ComposeCli::new(
        Runtime::Docker,
        &Endpoint::Unix("/run/test.sock".into()),
        [("PWD".into(), "/".into())],
    );
    let of = |project: &Project, variables: &[(&str, &str)]| {
        let variables: Vec<_> = variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        variable(&compose.command(project, &["config"], Path::new("/srv/shop"), &variables), "PWD")
    };
    let plain = Project::default();
    assert_eq!(of(&plain, &[]).as_deref(), Some("/srv/shop"));
    let elsewhere = Project { folder: Some("/srv/other".into()), ..Project::default() };
    assert_eq!(of(&elsewhere, &[]).as_deref(), Some("/srv/other"));
    assert_eq!(of(&plain, &[("PWD", "/data")]).as_deref(), Some("/data"), "the env file's");
}

#[test]
fn compose_separates_the_parts_of_names_as_those_of_the_containers() {
    let compose = cli(Runtime::Docker);
    for (compatibility, expected) in [(None, None), (Some(true), Some("true")), (Some(false), Some("false"))]
    {
        let project = Project { compatibility, ..Project::default() };
        let command = compose.command(&project, &["up"], Path::new("/srv/shop"), &[]);
        assert_eq!(variable(&command, "COMPOSE_COMPATIBILITY").as_deref(), expected);
    }
}

/// A variable that a command is run with.
fn variable(command: &Command, wanted: &str) -> Option<String> {
    let mut set = command.as_std().get_envs().filter(|(name, _)| *name == wanted);
    set.next().and_then(|(_, value)| value?.to_str().map(str::to_owned))
}

#[tokio::test]
async fn a_compose_file_that_has_become_a_link_is_not_run() {
    let stage = Stage::new("echo x >> ran");
    let project = stage.project();
    let compose = scripted();
    compose.up(&project, &UpMode::Changed, PullPolicy::Never).await.unwrap();
    fs::rename(stage.path("compose.yml"), stage.path("other.yml")).unwrap();
    std::os::unix::fs::symlink(stage.path("other.yml"), stage.path("compose.yml")).unwrap();
    let expected = format!(
        "compose file {}: is a symbolic link, which is not followed",
        stage.path("compose.yml").display()
    );
    assert_eq!(compose.up(&project, &UpMode::Changed, PullPolicy::Never).await.unwrap_err().cause, expected);
    assert_eq!(compose.validate(&project).await.unwrap_err().cause, expected);
    assert_eq!(stage.read("ran"), "x\n");
}

#[tokio::test]
async fn stdout_and_stderr_are_captured_in_order_without_escape_sequences() {
    let stage = Stage::new("echo one; echo two >&2; printf '\\033[31mthree\\033[0m\\n'");
    let output = scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap();
    assert_eq!(output, "one\ntwo\nthree");
}

#[tokio::test]
async fn a_flood_of_output_neither_blocks_nor_grows_without_bound() {
    let stage = Stage::new("head -c 30000000 /dev/zero | tr '\\0' x; echo; echo the end >&2; exit 1");
    let error = scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert_eq!(error.cause, "the end");
    assert!(error.output.len() <= 8 * 1024, "{}", error.output.len());
}

#[tokio::test]
async fn the_last_line_is_the_cause_without_variable_parts() {
    let id = "3f".repeat(32);
    let stage = Stage::new(&format!(
        "echo ' web  Starting' >&2; echo 'Error: endpoint p-1 ({id}): Bind failed' >&2; echo; exit 1"
    ));
    let error = scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert_eq!(error.cause, "Error: endpoint p-1 (<id>): Bind failed");
    assert!(error.output.starts_with(" web  Starting"), "{}", error.output);

    let stage = Stage::new("echo 'time=\"2024-05-01T10:00:00Z\" level=error msg=\"no such thing\"'; exit 15");
    let error = scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert_eq!(error.cause, "no such thing");

    let stage = Stage::new("exit 3");
    let error = scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert_eq!(error.cause, "`up` failed without output (exit status: 3)");
    assert!(error.is_unexplained());

    // `podman compose` has the last word, which is the same for each fault.
    let of_podman =
        "echo 'Error: executing /usr/bin/docker-compose -p shop up -d: exit status 1' >&2; exit 1";
    let stage = Stage::new(&format!("echo 'Error: no such user' >&2; {of_podman}"));
    let error = scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert_eq!((error.cause.as_str(), error.is_unexplained()), ("Error: no such user", false));

    let stage = Stage::new(of_podman);
    let error = scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert!(error.cause.starts_with("Error: executing ") && error.is_unexplained(), "{}", error.cause);
}

#[tokio::test]
async fn a_container_name_conflict_is_retried_a_few_times() {
    let conflict = "echo x >> tries; echo 'Error response from daemon: Conflict. The container name \"/a\" is already in use' >&2";
    let stage = Stage::new(&format!("test -e tries && exit 0; {conflict}; exit 1"));
    scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap();

    let stage = Stage::new(&format!("{conflict}; exit 1"));
    let error = scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert_eq!(stage.read("tries"), "x\nx\nx\nx\n", "three retries, not more");
    assert!(error.cause.contains("Conflict."), "{}", error.cause);

    let stage = Stage::new("echo x >> tries; echo no >&2; exit 1");
    scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert_eq!(stage.read("tries"), "x\n");
}

#[tokio::test]
async fn a_model_is_read_completely_and_without_the_warnings() {
    let model = |script: &str| {
        let stage = Stage::new(script);
        async move { scripted().model(&stage.project()).await }
    };
    let long = "x".repeat(100_000);
    let small = r#"{"name": "shop", "services": {"web": {"image": "a"}}, "volumes": {"data": null}}"#;
    let large = format!(
        r#"{{"services": {{"db": {{}}, "web": {{"image": "a"}}}}, "volumes": {{"data": null}}, "x-long": "{long}"}}"#
    );
    let other = r#"{"services": {"web": {"image": "a"}}, "volumes": {"data": {"name": "other"}}}"#;
    let mut models = Vec::new();
    for text in [small, &large, other] {
        let script = format!("echo 'level=warning' >&2; cat <<'END'\n{text}\nEND\necho 'level=warning' >&2");
        models.push(model(&script).await.unwrap());
    }
    assert!(models[0].is_part_of(&models[1]) && !models[1].is_part_of(&models[0]));
    assert!(!models[0].is_part_of(&models[2]));
    assert_eq!(model("echo broken >&2; exit 1").await.unwrap_err().cause, "broken");
    let error = model("echo '{}' | head -c 1").await.unwrap_err().cause;
    assert!(error.contains("did not print a valid model"), "{error}");
}

#[tokio::test]
async fn services_of_a_profile_that_is_off_do_not_keep_those_with_containers_from_being_rendered() {
    let stage = Stage::new(
        r#"echo "$*" >> args.txt
case "$*" in
  *'--profile * '*) echo 'services.gpu: container name "x" is already in use by service cpu' >&2; exit 1;;
  *' former'*) echo 'no such service: former' >&2; exit 1;;
  *--hash*) echo 'cpu 1234';;
  *) echo '{"services": {"cpu": {"image": "a", "profiles": ["small"]}, "db": {"image": "b"}}}';;
esac"#,
    );
    let present = vec!["cpu".to_owned(), "former".to_owned()];
    let project = Project { present, ..stage.project() };
    let model = scripted().model(&project).await.unwrap();
    assert!(model.service("cpu").is_some() && model.service("db").is_some());
    let asked = stage.read("args.txt");
    let last = asked.lines().next_back().unwrap();
    assert!(last.ends_with(" --profile small config --format json cpu"), "{asked}");
    let hashes = scripted().hashes(&project).await.unwrap();
    assert_eq!(hashes.by_service, [("cpu".to_owned(), "1234".to_owned())].into());
    let asked = stage.read("args.txt");
    assert!(asked.contains(" --profile small config --hash *"), "{asked}");
    assert_eq!(hashes.home, "/home/agent");

    // Where nothing is known to run, and where that can't be rendered either, the error is that of the whole project.
    for present in [Vec::new(), vec!["former".to_owned()]] {
        let project = Project { present, ..stage.project() };
        let error = scripted().model(&project).await.unwrap_err();
        assert!(error.cause.contains("already in use"), "{error}");
        assert_eq!(scripted().hashes(&project).await.err(), Some(error));
    }
}

#[tokio::test]
async fn the_proxies_that_compose_sets_are_read_from_dockers_configuration() {
    let stage = Stage::new("exit 0");
    let proxies = async || {
        let own: [(OsString, OsString); 1] = [("DOCKER_CONFIG".into(), stage.folder.path().into())];
        let compose = ComposeCli { environment: Environment::new(own, |_, _| false), ..scripted() };
        compose.proxies().await
    };
    assert_eq!(proxies().await, Some(BTreeMap::new()), "there is no such file");
    fs::write(stage.path("config.json"), r#"{"proxies": {"default": {"noProxy": "a"}}}"#).unwrap();
    let both = ["NO_PROXY", "no_proxy"].map(|name| (name.to_owned(), "a".to_owned()));
    assert_eq!(proxies().await, Some(BTreeMap::from(both)));
    fs::write(stage.path("config.json"), "{").unwrap();
    assert_eq!(proxies().await, None, "unknown is not none");
}

#[tokio::test]
async fn at_the_deadline_the_whole_group_gets_sigterm() {
    let stage =
        Stage::new("trap 'echo asked; exit 1' TERM\nsleep 1000 > /dev/null 2>&1 &\necho $! > pid\nwait");
    let begin = Instant::now();
    let compose = scripted().with_limit(Duration::from_secs(1));
    // Compose itself waits for health checks if `depends_on` requires it, and for containers to stop.
    let (health_grace, stop_grace) = (Duration::from_secs(1), Duration::from_secs(1));
    let project = Project { health_grace, stop_grace, wait_grace: Duration::from_secs(1), ..stage.project() };
    let error = compose.up(&project, &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert_eq!(error.cause, "`up` timed out after 4 s and was stopped");
    assert_eq!(error.output, "asked");
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
    wait_for_exit(stage.read("pid").trim()).await;
}

#[tokio::test]
async fn a_process_that_ignores_sigterm_is_killed_with_its_children() {
    let stage = Stage::new(
        "trap '' TERM\nsh -c 'trap \"\" TERM; echo $$ > pid; while :; do sleep 1; done' &\nwhile :; do sleep 1; done",
    );
    let begin = Instant::now();
    let compose = scripted().with_limit(Duration::from_secs(1));
    compose.up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
    wait_for_exit(stage.read("pid").trim()).await;
}

#[tokio::test]
async fn a_dropped_run_kills_the_group_at_once() {
    let stage = Stage::new("trap '' TERM\nsleep 1000 &\necho $! > pid\necho $$ > leader\nwait");
    let compose = scripted();
    let project = stage.project();
    let running = compose.up(&project, &UpMode::Changed, PullPolicy::Never);
    let (pid, leader) = tokio::select! {
        _ = running => panic!("it ended by itself"),
        pids = async { (stage.written("pid").await, stage.written("leader").await) } => pids,
    };
    wait_for_exit(&pid).await;
    wait_for_exit(&leader).await;
}

#[tokio::test]
async fn a_grandchild_that_keeps_the_output_open_does_not_delay_the_result() {
    let stage = Stage::new("sleep 1000 &\necho $! > pid\nexit 0");
    let begin = Instant::now();
    scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap();
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
    wait_for_exit(stage.read("pid").trim()).await;
}

#[tokio::test]
async fn missing_programs_and_files_are_named() {
    let stage = Stage::new("exit 0");
    let cause = async |compose: ComposeCli, project: &Project| {
        compose.up(project, &UpMode::Changed, PullPolicy::Never).await.unwrap_err().cause
    };
    let absent = ComposeCli { program: "/nowhere/docker".into(), ..scripted() };
    assert_eq!(
        cause(absent, &stage.project()).await,
        "/nowhere/docker can't be run: not found (install it, or set \"runtime\")"
    );
    let elsewhere = Project { files: vec!["/nowhere/compose.yml".into()], ..stage.project() };
    assert_eq!(
        cause(scripted(), &elsewhere).await,
        "the folder /nowhere of the compose files does not exist"
    );
    let nothing = Project { files: Vec::new(), ..stage.project() };
    assert_eq!(cause(scripted(), &nothing).await, "no compose files configured");
    let faulty = stage.project_with_env("A=1\nB C\n");
    let text = cause(scripted(), &faulty).await;
    assert!(text.starts_with("env_file ") && text.contains("vars.env, line 2: "), "{text}");
    for (file, want) in [("absent.env", "does not exist"), (".", "is a directory")] {
        let project = Project { env_file: Some(stage.path(file)), ..stage.project() };
        let text = cause(scripted(), &project).await;
        assert_eq!(text, format!("env_file {}: {want}", stage.path(file).display()));
    }

    for words in ["unknown shorthand flag: 'p' in -p", "docker: 'compose' is not a docker command."] {
        let stage =
            Stage::scripted(&format!("echo \"{words}\" >&2; echo \"See 'docker --help'.\" >&2; exit 125"));
        let text = cause(scripted(), &stage.project()).await;
        assert!(text.starts_with("docker has no compose plugin"), "{text}");
    }

    let lines = [
        ("Error: unknown shorthand flag: 'p' in -p", "this podman has no compose (it needs podman 4.7"),
        ("Error: unrecognized command `podman compose`", "this podman has no compose (it needs podman 4.7"),
        (
            "Error: looking up compose provider failed",
            "podman has no compose provider (install docker-compose)",
        ),
    ];
    for (words, want) in lines {
        let stage = Stage::scripted(&format!("cat >&2 <<'END'\n{words}\nSee 'podman --help'\nEND\nexit 125"));
        let podman = ComposeCli { program: "/bin/sh".into(), ..cli(Runtime::Podman) };
        let text = cause(podman, &stage.project()).await;
        assert!(text.starts_with(want), "{text}");
    }
}

#[tokio::test]
async fn a_compose_that_is_too_old_is_refused_before_it_changes_anything() {
    for version in ["Docker Compose version v2.5.0", "docker-compose version 1.29.2, build unknown"] {
        let stage = Stage::of_version(version, "echo x > touched");
        let first = scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
        let second = scripted().up(&stage.project(), &UpMode::All, PullPolicy::Never).await.unwrap_err();
        assert_eq!(first, second, "the same fault has the same text");
        assert!(
            first.cause.contains("is too old: 2.20 or later is needed (install a newer"),
            "{}",
            first.cause
        );
        assert_eq!(stage.read("touched"), "");
    }
    // The version is read again each time: installing a newer one needs no restart of the agent.
    let stage = Stage::scripted("test \"$1\" = version && { cat version; exit 0; }\necho x > touched");
    let compose = scripted();
    fs::write(stage.path("version"), "v2.19.0\n").unwrap();
    compose.up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    fs::write(stage.path("version"), "v2.20.0\n").unwrap();
    compose.up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap();
    assert_eq!(stage.read("touched"), "x\n");
}

#[tokio::test]
async fn a_compose_without_a_reported_version_is_used() {
    for script in ["test \"$1\" = version && exit 1\nexit 0", "test \"$1\" = version && echo dev; exit 0"] {
        let stage = Stage::scripted(script);
        scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap();
    }
}

#[tokio::test]
async fn an_api_mismatch_between_compose_and_engine_is_reported_in_one_sentence() {
    let lines = [
        (
            "v2.5.0-ds", // below the floor it is refused as such
            "client version 1.42 is too old. Minimum supported API version is 1.44, please upgrade your client",
            "compose 2.5.0 is too old: 2.20 or later is needed",
        ),
        (
            "v2.20.3",
            "Error response from daemon: client version 1.43 is too old. Minimum supported API version is 1.44, please",
            "compose 2.20.3 is too old for this engine: it uses API 1.43, but the engine requires 1.44 (Docker 25.0)",
        ),
        (
            "v5.1.0",
            "client version 1.52 is too new. Maximum supported API version is 1.41",
            "compose 5.1.0 is too new for this engine: it requires API 1.52 or later, but the engine supports 1.41",
        ),
        (
            "v5.1.0",
            "API version 1.41 is not supported by this client: the minimum supported API version is 1.44",
            "compose 5.1.0 is too new for this engine: it requires API 1.44 or later, but the engine supports 1.41",
        ),
    ];
    for (version, words, want) in lines {
        let stage = Stage::of_version(version, &format!("echo '{words}' >&2; exit 1"));
        for _ in 0..2 {
            let error =
                scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
            assert!(error.cause.starts_with(want), "{}", error.cause);
        }
    }
}

#[tokio::test]
async fn problems_with_compose_are_found_before_any_run() {
    let containerd = "[[driver-type io.containerd.snapshotter.v1]]";
    let table = [
        ("v2.40.3", containerd, None),
        ("v5.5.0", containerd, None),
        ("v5.4.0", "[[Backing Filesystem extfs]]", None),
        (
            "v5.4.1",
            containerd,
            Some("compose 5.4.1 recreates unchanged containers where the engine keeps images in"),
        ),
        ("v2.19.1", containerd, Some("compose 2.19.1 is too old: 2.20 or later is needed (install")),
    ];
    for (version, storage, want) in table {
        let stage = Stage::of_version(version, "exit 1");
        fs::write(stage.path("info"), format!("echo '{storage}'")).unwrap();
        let problem = scripted().problem_in(stage.folder.path()).await;
        match want {
            None => assert_eq!(problem, None, "{version}"),
            Some(want) => assert!(problem.as_ref().is_some_and(|text| text.starts_with(want)), "{problem:?}"),
        }
    }
    let stage = Stage::scripted("echo \"docker: 'compose' is not a docker command.\" >&2; exit 1");
    let problem = scripted().problem_in(stage.folder.path()).await;
    assert!(
        problem.as_ref().is_some_and(|text| text.starts_with("docker has no compose plugin (install")),
        "{problem:?}"
    );
}

#[tokio::test]
async fn a_recorded_definition_is_compared_and_brought_up_if_the_state_can_not_be_written() {
    let stage = Stage::new("echo \"$*\" > args.txt; echo web");
    fs::write(stage.path("file"), "").unwrap();
    // Not even root can create a folder below a file.
    let compose = scripted().with_definitions(stage.path("file/definitions"));
    let project = stage.project().defined_by(std::sync::Arc::default());
    let spare = definition::process_folder();

    let active = compose.active_services(&project).await.unwrap();
    assert_eq!(active, BTreeSet::from(["web".to_owned()]));
    let read = stage.read("args.txt");
    assert!(read.contains(&format!("-f {}/shop.evenkeel-recorded.json.", spare.display())), "{read}");

    compose.up(&project, &UpMode::Changed, PullPolicy::Never).await.unwrap();
    let written = stage.read("args.txt");
    assert!(written.contains(&format!("-f {}/shop.evenkeel-recorded.json ", spare.display())), "{written}");
    fs::remove_dir_all(spare).unwrap();
}

#[tokio::test]
async fn the_definition_of_containers_stays_also_if_their_service_is_named_like_a_subcommand() {
    let stage = Stage::new("echo \"$*\" > args.txt");
    let compose = scripted().with_definitions(stage.path("definitions"));
    let project = stage.project().defined_by(std::sync::Arc::default());
    let config = || vec!["config".to_owned()];
    for up_mode in [UpMode::Services(config()), UpMode::StartServices(config())] {
        compose.up(&project, &up_mode, PullPolicy::Never).await.unwrap();
        let file = stage.path("definitions/shop.evenkeel-recorded.json");
        let args = stage.read("args.txt");
        assert!(args.contains(&format!("-f {} ", file.display())) && args.ends_with(" config\n"), "{args}");
        assert!(file.exists(), "{args}");
    }
}

#[tokio::test]
async fn an_error_about_a_recorded_definition_has_the_same_text_each_time() {
    let stage = Stage::new("echo \"validating $4: additional properties not allowed\" >&2; exit 1");
    let compose = scripted().with_definitions(stage.path("definitions"));
    let project = stage.project().defined_by(std::sync::Arc::default());
    let first = compose.active_services(&project).await.unwrap_err();
    assert!(first.cause.contains("/shop.evenkeel-recorded.json: additional"), "{}", first.cause);
    assert_eq!(compose.active_services(&project).await.unwrap_err(), first);
    assert_eq!(fs::read_dir(stage.path("definitions")).unwrap().count(), 0);
}

#[test]
fn a_definition_that_can_not_be_written_has_the_same_text_each_time_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // The draft is written, but can't take the place of a folder.
    let path = folder.path().join("shop.evenkeel-recorded.json");
    fs::create_dir_all(path.join("below")).unwrap();
    let no_spare = || -> std::io::Result<PathBuf> { Err(std::io::ErrorKind::StorageFull.into()) };
    let text = definition::place_in(&path, no_spare, b"{}", false).unwrap_err();
    assert!(text.contains(&path.display().to_string()), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the draft is gone");

    let below = path.join("below/file");
    fs::write(&below, "").unwrap();
    let cause = || definition::place_in(&below.join("shop.json"), no_spare, b"{}", true).unwrap_err();
    assert_eq!(cause(), cause());
}

#[test]
fn what_killed_calls_have_left_is_removed_but_not_the_file_that_containers_name() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["shop.evenkeel-recorded.json", "shop.evenkeel-recorded.json.0123456789abcdef", "other.json"];
    for name in names {
        fs::write(folder.path().join(name), "").unwrap();
    }
    scripted().with_definitions(folder.path().to_owned()).remove_leftovers();
    let left = names.map(|name| folder.path().join(name).exists());
    assert_eq!(left, [true, false, true]);
    scripted().with_definitions(folder.path().join("none")).remove_leftovers();
}
