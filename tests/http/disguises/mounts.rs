//! The places where a layer can be mounted. Each serves [`echo::PATH`] for any method.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::routing::any;
use axum::serve::ListenerExt;
use http::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic_prost::ProstCodec;
use tower::util::MapRequestLayer;
use tower::{Service, ServiceBuilder, service_fn};
use tower_sluice::RateLimitLayer;

use super::Admitted;
use crate::echo::{self, EchoReply, EchoRequest};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mount {
    /// `any(handler).layer(…)`.
    MethodRouter,
    RouterLayer,
    RouteLayer,
    Fallback,
    NestService,
    NestedRouter,
    /// `tonic::transport::Server::layer`, around a service that ignores the method, as all tonic services do.
    Tonic,
    Hyper,
}

impl Mount {
    pub(crate) const ALL: [Self; 8] = [
        Self::MethodRouter,
        Self::RouterLayer,
        Self::RouteLayer,
        Self::Fallback,
        Self::NestService,
        Self::NestedRouter,
        Self::Tonic,
        Self::Hyper,
    ];

    /// Serves until the runtime ends.
    pub(crate) async fn serve(self, layer: RateLimitLayer, admitted: &Admitted) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        match self {
            Self::Tonic => {
                let layers = ServiceBuilder::new().layer(layer).layer(counting(admitted)).into_inner();
                let server = tonic::transport::Server::builder().accept_http1(true).layer(layers).add_service(Echo);
                let incoming = TcpListenerStream::new(listener).map(|socket| socket.inspect(at_once));
                tokio::spawn(server.serve_with_incoming(incoming));
            }
            Self::Hyper => {
                tokio::spawn(serve_hyper(listener, layer, admitted.clone()));
            }
            _ => {
                let app = self.router(layer, admitted).into_make_service_with_connect_info::<SocketAddr>();
                tokio::spawn(async { axum::serve(listener.tap_io(|socket| at_once(socket)), app).await });
            }
        }
        address
    }

    fn router(self, layer: RateLimitLayer, admitted: &Admitted) -> Router {
        let layers = ServiceBuilder::new().layer(layer).layer(counting::<axum::body::Body>(admitted));
        let handler = || any(|| async { "served" });
        let (service, method) = echo::PATH.rsplit_once('/').unwrap();
        match self {
            Self::MethodRouter => Router::new().route(echo::PATH, handler().layer(layers)),
            Self::RouterLayer => Router::new().route(echo::PATH, handler()).layer(layers),
            Self::RouteLayer => Router::new().route(echo::PATH, handler()).route_layer(layers),
            Self::Fallback => Router::new().fallback(|| async { "served" }).layer(layers),
            Self::NestService => {
                let served = |_: axum::extract::Request| async {
                    Ok::<_, Infallible>(Response::new(axum::body::Body::from("served")))
                };
                Router::new().nest_service(service, layers.service(service_fn(served)))
            }
            Self::NestedRouter => {
                Router::new().nest(service, Router::new().route(&format!("/{method}"), handler()).layer(layers))
            }
            Self::Tonic | Self::Hyper => unreachable!("not axum's"),
        }
    }
}

/// Sets `TCP_NODELAY`, so that small responses are sent at once.
fn at_once(socket: &TcpStream) {
    socket.set_nodelay(true).unwrap();
}

/// Counts the requests that pass the layer, directly inside it.
fn counting<B>(admitted: &Admitted) -> MapRequestLayer<impl Fn(Request<B>) -> Request<B> + Clone + use<B>> {
    let admitted = admitted.clone();
    MapRequestLayer::new(move |request| {
        admitted.add_one();
        request
    })
}

async fn serve_hyper(listener: TcpListener, layer: RateLimitLayer, admitted: Admitted) {
    let layers = ServiceBuilder::new().layer(layer).layer(counting(&admitted));
    loop {
        let (socket, peer) = listener.accept().await.unwrap();
        at_once(&socket);
        let with_peer = move |mut request: Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(peer);
            request
        };
        let served =
            |_: Request<hyper::body::Incoming>| async { Ok::<_, Infallible>(Response::new(String::from("served"))) };
        let service = ServiceBuilder::new().map_request(with_peer).layer(layers.clone()).service(service_fn(served));
        tokio::spawn(async move {
            let service = TowerToHyperService::new(service);
            auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await
        });
    }
}

/// The service that tonic generates for `echo.proto`.
#[derive(Clone)]
struct Echo;

impl tonic::server::NamedService for Echo {
    const NAME: &'static str = "sluice.example.v1.Echo";
}

impl Service<Request<tonic::body::Body>> for Echo {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async {
            let echo = service_fn(|request: tonic::Request<EchoRequest>| async {
                let EchoRequest { message } = request.into_inner();
                Ok::<_, tonic::Status>(tonic::Response::new(EchoReply { message }))
            });
            let mut server = tonic::server::Grpc::new(ProstCodec::<EchoReply, EchoRequest>::default());
            Ok(server.unary(echo, request).await)
        })
    }
}
