//! A server below a path.

use super::*;

#[tokio::test]
async fn everything_is_below_the_base_path_and_health_is_also_outside() {
    let server = TestServer::below("/tools/ek/", Limits::default());
    for path in ["/tools/ek/status", "/tools/ek/", "/tools/ek/page", "/tools/ek/health", "/health"] {
        assert_eq!(status(&server.ask("GET", path).await), 200, "{path}");
    }
    assert_eq!(body(&server.ask("GET", "/tools/ek/status/a?x=1").await), r#"["a",["x=1"],0,"127.0.0.1"]"#);
    for path in [
        "/",
        "/status",
        "/page",
        "/tools",
        "/tools/",
        "/tools/ekx/status",
        "/tools/ek/tools/ek/status",
        "/health/",
    ] {
        let answer = server.ask("GET", path).await;
        assert_error(&answer, 404);
        assert_error(&server.ask("POST", path).await, 404);
    }
    assert!(body(&server.ask("GET", "/status").await).contains("below /tools/ek (api.base_path)"));
    assert_error(&server.ask("POST", "/tools/ek/status").await, 405);
    server.finish().await;
}

#[tokio::test]
async fn the_base_path_without_its_slash_is_redirected_with_its_query() {
    let server = TestServer::below("/ek", Limits::default());
    for (asked, target) in [("/ek", "/ek/"), ("/ek?token=a%20b&x", "/ek/?token=a%20b&x")] {
        for method in ["GET", "HEAD"] {
            let answer = server.ask(method, asked).await;
            assert_eq!((status(&answer), header(&answer, "location")), (308, Some(target)), "{answer}");
        }
    }
    assert_error(&server.ask("POST", "/ek").await, 404);
    server.finish().await;
}

#[tokio::test]
async fn the_access_rules_apply_below_the_base_path_and_outside() {
    let server = TestServer::below("/ek", Limits::default());
    let ask = async |path: &str, headers: &str| {
        let text = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
        status(&server.send(&text).await)
    };
    for path in ["/ek/status", "/ek", "/ek/", "/status", "/ek/health/", "/metrics"] {
        assert_eq!(ask(path, "Host: evil.test\r\n").await, 403, "{path}");
        assert_eq!(ask(path, "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n").await, 403, "{path}");
    }
    for path in ["/health", "/ek/health"] {
        assert_eq!(ask(path, "Host: evil.test\r\n").await, 200, "{path}");
    }
    let link = "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
    for (path, expected) in
        [("/ek", 308), ("/ek/", 200), ("/ek/page", 200), ("/page", 403), ("/ek/status", 403)]
    {
        assert_eq!(ask(path, link).await, expected, "{path}");
    }
    let origin = "POST /ek/ignores HTTP/1.1\r\nConnection: close\r\nHost: localhost\r\nOrigin: http://evil.test\r\n\r\n";
    assert_eq!(status(&server.send(origin).await), 403);
    server.finish().await;
}
