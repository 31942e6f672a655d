//! The values of `--log-format`.

use std::str::FromStr;
use std::sync::Arc;

use super::json::Names;
use super::pattern::Pattern;
use super::w3c::Columns;

/// A log's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Each line by its looks.
    Auto,
    /// With referer and agent, as nginx and Apache write it.
    Combined,
    /// Without referer and agent.
    Common,
    /// Combined behind the host, as Debian's Apache writes it.
    VhostCombined,
    /// An object per line.
    Json(Arc<Names>),
    /// JSON if a line begins with a brace, otherwise common, perhaps with more fields.
    Traefik,
    /// JSON if a line begins with a brace, otherwise Envoy's default text or Istio's.
    Envoy,
    Alb,
    Haproxy,
    /// `#Fields:` in the log, or these columns.
    W3c(Option<Arc<Columns>>),
    /// A string that describes it.
    Pattern(Arc<Pattern>),
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(fields) = text.strip_prefix("json:") {
            return Ok(Self::Json(Arc::new(Names::new(fields)?)));
        }
        if let Some(names) = text.strip_prefix("w3c:") {
            let columns = Columns::new(names);
            return match columns.missing() {
                Some(missing) => Err(format!("the columns lack {missing}")),
                None => Ok(Self::W3c(Some(Arc::new(columns)))),
            };
        }
        Ok(match text {
            "auto" => Self::Auto,
            "combined" | "ingress-nginx" | "nginx" | "apache" => Self::Combined,
            "common" => Self::Common,
            "vhost-combined" | "vhost_combined" => Self::VhostCombined,
            "json" | "caddy" | "ecs" => Self::Json(Arc::default()),
            "traefik" => Self::Traefik,
            "envoy" => Self::Envoy,
            "alb" | "elb" => Self::Alb,
            "haproxy" => Self::Haproxy,
            "w3c" | "iis" | "cloudfront" => Self::W3c(None),
            text if text.contains(['$', '%']) => Self::Pattern(Arc::new(Pattern::new(text)?)),
            _ => {
                return Err(
                    "write auto, combined, common, vhost-combined, ingress-nginx, json, caddy, traefik, envoy, \
                            alb, cloudfront, w3c or haproxy; or the string of nginx's log_format, Apache's LogFormat \
                            or Envoy; or name fields of JSON, such as json:time=ts,client=ip"
                        .to_owned(),
                );
            }
        })
    }
}
