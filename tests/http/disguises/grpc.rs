//! gRPC is POST over HTTP/2 (gRPC-Web: POST) with a few media types.

use http::Version;

use super::mounts::Mount;
use super::wire::{MESSAGE, Spelled};
use super::{Admitted, per_client};

/// Sends a request with this method, media type and version, and returns its rejection.
async fn rejection(method: &'static str, media_type: &str, version: Version) -> super::wire::Answer {
    let address = Mount::RouterLayer.serve(per_client(1), &Admitted::default()).await;
    let spelled = Spelled::new(method, &[("content-type", media_type)]).body(MESSAGE);
    assert_eq!(spelled.ask(address, version).await.unwrap().status, 200);
    let answer = spelled.ask(address, version).await.unwrap();
    assert!(answer.is_rejection());
    answer
}

#[tokio::test]
async fn non_grpc_requests_are_rejected_with_429() {
    for (method, media_type, version) in [
        ("POST", "application/grpc", Version::HTTP_11),
        ("POST", "application/grpc+proto", Version::HTTP_11),
        ("GET", "application/grpc", Version::HTTP_2),
        ("OPTIONS", "application/grpc", Version::HTTP_2),
        ("PUT", "application/grpc-web", Version::HTTP_2),
        ("GET", "application/grpc-web-text", Version::HTTP_11),
    ] {
        let answer = rejection(method, media_type, version).await;
        let seen = (answer.status, answer.field("content-type"), answer.field("grpc-status"));
        assert_eq!(seen, (429, Some("application/problem+json"), None), "{method} {media_type} {version:?}");
    }
}

#[tokio::test]
async fn only_known_media_types_are_echoed() {
    for (media_type, version, echoed) in [
        ("application/grpc", Version::HTTP_2, "application/grpc"),
        ("application/grpc+proto", Version::HTTP_2, "application/grpc"),
        ("application/grpc+<script>", Version::HTTP_2, "application/grpc"),
        ("application/grpc-web", Version::HTTP_11, "application/grpc-web"),
        ("Application/gRPC-Web+PROTO;a=b", Version::HTTP_2, "application/grpc-web+proto"),
        ("application/grpc-web+json", Version::HTTP_11, "application/grpc-web+json"),
        ("application/grpc-web+thrift", Version::HTTP_11, "application/grpc-web+thrift"),
        ("application/grpc-web+<script>", Version::HTTP_11, "application/grpc-web"),
        ("application/grpc-web-text", Version::HTTP_2, "application/grpc-web-text"),
        ("application/grpc-web-text+proto", Version::HTTP_11, "application/grpc-web-text+proto"),
        ("application/grpc-web-text+x\"y", Version::HTTP_11, "application/grpc-web-text"),
    ] {
        let answer = rejection("POST", media_type, version).await;
        let seen = (answer.status, answer.field("content-type"), answer.field("grpc-status"));
        assert_eq!(seen, (200, Some(echoed), Some("8")), "{media_type} {version:?}");
    }
}
