//! Images that are present in the engine but can't be inspected.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_image_that_the_engine_can_not_describe_delays_no_other_image_of_its_service() {
    let fake = new_world();
    for (service, text, old) in [("web", WEB, "v1"), ("api", API, "api1")] {
        fake.push(&reference(text), old, Behaviour::Good);
        fake.add_image(&reference(text), old, Behaviour::Good, true);
        fake.compose_service(service, &reference(text));
    }
    fake.operator_up();
    fake.make_unreadable(id_of("v1"));
    fake.push(&reference(API), "api2", Behaviour::Good);
    assert!(run_agent(&fake, &config(&[WEB, API]), LONG, Script::Poll).await);
    assert_eq!(fake.running("api"), [id_of("api2")]);
    assert_eq!(fake.running("web"), [id_of("v1")], "an image that can't be compared stays");
    let faults: Vec<_> = fake.entries().into_iter().filter(|entry| entry.event == Kind::ERROR).collect();
    assert!(faults[0].message.contains("readlink: invalid argument"), "{faults:#?}");
    assert_eq!(fake.violations(), Vec::<String>::new());
}
