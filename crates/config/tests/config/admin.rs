//! A configuration's layers in the admin service.

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_sluice_config::Config;

#[tokio::test]
async fn layers_are_named_after_their_paths() {
    let file = |limit: u32| {
        format!(
            "[[route]]\npath = [\"/a\", \"/b\"]\n[[route.policy]]\nname = \"p\"\nalgorithm = \"token-bucket\"\n\
             limit = {limit}\nper = \"1h\"\n[[route]]\npath = \"/free\"\n"
        )
    };
    let mut config = Config::parse("f.toml", &file(7)).unwrap();
    let router = tower_sluice_admin::router(&config);
    let policies = async || {
        let request = Request::get("/api/policies").body(Body::empty()).unwrap();
        let body = router.clone().oneshot(request).await.unwrap().into_body();
        serde_json::from_slice::<Value>(&body.collect().await.unwrap().to_bytes()).unwrap()["policies"].clone()
    };
    let before = policies().await;
    assert_eq!(
        (before.as_array().unwrap().len(), &before[0]["layer"], &before[0]["limit"]),
        (1, &json!("/a"), &json!(7))
    );
    let _ = config.change("f.toml", &file(9)).unwrap();
    assert_eq!(policies().await[0]["limit"], 9);
    // It works under a path, too, because everything is relative to it.
    let nested: axum::Router = axum::Router::new().nest_service("/limits", tower_sluice_admin::router(&config));
    for (path, status) in
        [("/limits/", 200), ("/limits/admin.js", 200), ("/limits/api/policies", 200), ("/api/policies", 404)]
    {
        let request = Request::get(path).body(Body::empty()).unwrap();
        assert_eq!(nested.clone().oneshot(request).await.unwrap().status(), status, "{path}");
    }
}
