//! Finding, pulling, tagging and holding images.

use super::*;

#[tokio::test]
async fn images_are_found_by_tag_and_by_id() {
    let stage = Stage::new().await;
    let tag = format!("{}/web:1", stage.id);
    let id = stage.image(&tag, "one", &[]);
    let by_tag = stage.engine.image(&format!("docker.io/{tag}")).await.unwrap().unwrap();
    assert_eq!(by_tag.id, ImageId(id.as_str().into()));
    assert!(by_tag.size > 100_000 && by_tag.repo_digests.is_empty(), "{by_tag:?}");
    assert_eq!(stage.engine.image(&id).await.unwrap(), Some(by_tag));
    assert_eq!(stage.engine.image(&format!("{}/none:1", stage.id)).await.unwrap(), None);
    assert!(stage.engine.image("../containers/json").await.is_err());
}

#[tokio::test]
async fn a_pull_fetches_exactly_the_digest_and_reports_progress() {
    let stage = Stage::new().await;
    let registry = Registry::start().await;
    let tag = format!("{}/{}:1", registry.host, stage.id);
    let id = stage.image(&tag, "one", &[]);
    let pushed = stage.docker(["push", "-q", &tag]);
    assert_eq!(pushed, tag);
    let digest = stage.docker(["image", "inspect", "-f", "{{index .RepoDigests 0}}", &tag]);
    let digest = Digest::parse(digest.split_once('@').unwrap().1).unwrap();
    stage.docker(["rmi", "-f", &id]);

    let pinned = Reference { digest: Some(digest.clone()), ..reference(&tag) };
    let (progress, mut seen) = watch::channel(PullProgress::default());
    stage.engine.pull(&pinned, None, &progress).await.unwrap();
    let last = *seen.borrow_and_update();
    assert!(last.total > 100_000 && last.bytes == last.total, "{last:?}");
    let image = stage.engine.image(&pinned.repository.at(&digest)).await.unwrap().unwrap();
    assert_eq!(image.id, ImageId(id.as_str().into()));
    assert_eq!(stage.engine.image(&tag).await.unwrap(), None, "the tag has not moved");

    stage.engine.tag(&image.id, &reference(&tag)).await.unwrap();
    assert_eq!(stage.engine.image(&tag).await.unwrap().unwrap().id, image.id);
    stage.engine.pull(&pinned, None, &progress).await.unwrap();

    let absent = Reference { digest: Some(Digest::of(b"nothing")), ..reference(&tag) };
    let error = stage.engine.pull(&absent, None, &progress).await.unwrap_err();
    assert!(!error.is_unavailable(), "{error:?}");
    assert!(error.to_string().starts_with(&format!("pull {absent}: ")), "{error}");
    let again = stage.engine.pull(&absent, None, &progress).await.unwrap_err();
    assert_eq!(error, again, "the same fault gives the same message");

    let host = registry.host.clone();
    drop(registry);
    let error = stage.engine.pull(&absent, None, &progress).await.unwrap_err();
    assert!(!error.is_unavailable(), "the engine is available, the registry is not: {error:?}");
    assert!(error.to_string().contains(&host), "{error}");
}

#[tokio::test]
async fn tags_can_be_set_and_removed_without_removing_an_image_in_use() {
    let stage = Stage::new().await;
    let first = reference(&format!("{}/web:1", stage.id));
    let held = reference(&format!("evenkeel.hold/{}:1", stage.id));
    let id = ImageId(stage.image(&first.tagged(), "one", &[]).into());
    stage.engine.tag(&id, &held).await.unwrap();
    assert_eq!(stage.engine.image(&held.tagged()).await.unwrap().unwrap().id, id);
    assert_eq!(stage.engine.tags(&held.repository).await.unwrap(), std::slice::from_ref(&held));
    let longer = reference(&format!("evenkeel.hold/{}x:1", stage.id));
    assert_eq!(stage.engine.tags(&longer.repository).await.unwrap(), []);
    stage.engine.untag(&held).await.unwrap();
    stage.engine.untag(&held).await.unwrap();
    assert_eq!(stage.engine.image(&held.tagged()).await.unwrap(), None);

    stage.run(&format!("{}-x", stage.id), &[], &first.tagged(), &["true"]);
    stage.engine.untag(&first).await.unwrap();
    assert!(stage.engine.image(&id.0).await.unwrap().is_some(), "a stopped container still needs it");

    let gone = ImageId(format!("sha256:{}", "0".repeat(64)).into());
    let error = stage.engine.tag(&gone, &held).await.unwrap_err();
    assert!(matches!(error, EngineError::NotFound(_)), "{error:?}");
}

#[tokio::test]
async fn an_anchor_holds_an_image_and_is_not_a_container_of_the_project() {
    let stage = Stage::new().await;
    let (id, name) = (&stage.id, format!("evenkeel-hold-{}-anchor", stage.id));
    let compose_label = format!("LABEL com.docker.compose.project={id} com.docker.compose.service=web");
    let changes = [compose_label.as_str(), "VOLUME /data", r#"ENTRYPOINT ["/nope"]"#];
    let one = ImageId(stage.image(&format!("{id}/web:1"), "one", &changes).into());
    let two = ImageId(stage.image(&format!("{id}/web:2"), "two", &changes).into());

    for _ in 0..2 {
        stage.engine.anchor(&name, &one, id).await.unwrap();
    }
    assert_eq!(stage.engine.anchors(id).await.unwrap(), [name.as_str()]);
    assert_eq!(stage.engine.anchors("other").await.unwrap(), [] as [&str; 0]);
    assert_eq!(project(&stage).await, []);
    let listed = stage.docker(["ps", "-aq", "--filter", &format!("label=com.docker.compose.project={id}")]);
    assert_eq!(listed, "", "compose does not see it either");
    let image_of = || stage.docker(["inspect", "-f", "{{.Image}} {{.State.Status}}", &name]);
    assert_eq!(image_of(), format!("{one} created"));

    let volume = stage.docker(["inspect", "-f", "{{(index .Mounts 0).Name}}", &name]);
    stage.engine.anchor(&name, &two, id).await.unwrap();
    assert_eq!(image_of(), format!("{two} created"));
    assert!(!stage.docker(["volume", "ls", "-q"]).contains(&volume), "its volumes were removed with it");

    stage.engine.remove_anchor(&name).await.unwrap();
    stage.engine.remove_anchor(&name).await.unwrap();
    assert_eq!(stage.engine.anchors(id).await.unwrap(), [] as [&str; 0]);

    let foreign = format!("{id}-foreign");
    stage.run(&foreign, &["--entrypoint", "sleep"], &format!("{id}/web:1"), &["1000"]);
    assert!(stage.engine.anchor(&foreign, &one, id).await.is_err());
    assert!(stage.engine.remove_anchor(&foreign).await.is_err());
    assert_eq!(stage.docker(["inspect", "-f", "{{.State.Status}}", &foreign]), "running");

    let gone = ImageId(format!("sha256:{}", "0".repeat(64)).into());
    let error = stage.engine.anchor(&name, &gone, id).await.unwrap_err();
    assert!(matches!(error, EngineError::NotFound(_)), "{error:?}");
}
