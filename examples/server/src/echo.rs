//! `sluice.example.v1.Echo`, on the server's port, for gRPC and gRPC-Web clients.
//!
//! Its messages, as in `echo.proto`, are written by hand, so that the build needs no Protobuf compiler. To add a
//! service that tonic generates to a [`Router`](axum::Router), use `tonic::service::Routes::into_axum_router`.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tonic::Status;
use tonic_prost::ProstCodec;
use tonic_web::GrpcWebLayer;
use tower::{Layer, ServiceExt, service_fn};

pub(crate) const PATH: &str = "/sluice.example.v1.Echo/Echo";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EchoRequest {
    #[prost(string, tag = "1")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EchoReply {
    #[prost(string, tag = "1")]
    pub(crate) message: String,
}

/// Handles a call.
pub(crate) async fn echo(request: Request) -> Response {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    if !content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")) {
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, "this path speaks gRPC\n").into_response();
    }
    let Ok(response) = GrpcWebLayer::new().layer(service_fn(unary)).oneshot(request).await;
    response.map(Body::new)
}

async fn unary(
    request: axum::http::Request<tonic::body::Body>,
) -> Result<axum::http::Response<tonic::body::Body>, Infallible> {
    let service = service_fn(|request: tonic::Request<EchoRequest>| async {
        let EchoRequest { message } = request.into_inner();
        Ok::<_, Status>(tonic::Response::new(EchoReply { message }))
    });
    let mut server = tonic::server::Grpc::new(ProstCodec::<EchoReply, EchoRequest>::default());
    Ok(server.unary(service, request).await)
}
