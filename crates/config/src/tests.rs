//! How single values in a file are read, and the errors for values that cannot be read.

use std::time::Duration;

use super::format::RawResponse;
use super::key::KeySpec;
use super::response::ResponseSettings;
use super::value::{duration, number_in};
use super::*;

/// Reads `a = VALUE` as the last of three lines.
fn value_of<T: serde::de::DeserializeOwned>(value: &str) -> (String, toml::Spanned<T>) {
    #[derive(serde::Deserialize)]
    struct File<T> {
        a: toml::Spanned<T>,
    }
    let text = format!("# A comment.\n\na = {value}\n");
    let File { a } = toml::from_str(&text).unwrap();
    (text, a)
}

#[test]
fn numbers_are_checked_against_their_range() {
    for (text, expected) in [("1", Some(1)), ("100", Some(100)), ("0", None), ("101", None), ("-1", None)] {
        let (file, value) = value_of::<i64>(text);
        let read = number_in(&SourceText::new("f.toml", &file), "hops", 1..=100, &value);
        assert_eq!(read.clone().ok(), expected, "{text}");
        if let Err(error) = read {
            assert_eq!(
                error.to_string(),
                format!("f.toml:3: hops = {text} is out of range; write a number from 1 to 100")
            );
        }
    }
    let (file, value) = value_of::<i64>("4294967296");
    assert!(
        number_in(&SourceText::new("f.toml", &file), "limit", 1..=u32::MAX.into(), &value).is_err(),
        "2^32 is not cut"
    );
}

#[test]
fn a_time_has_a_unit() {
    let read = |text: &str| {
        let (file, value) = value_of(&format!("\"{text}\""));
        duration(&SourceText::new("f.toml", &file), "per", &value).map_err(|error| error.to_string())
    };
    assert_eq!(read("250ms"), Ok(Duration::from_millis(250)));
    assert_eq!(read("1m 30s"), Ok(Duration::from_secs(90)));
    assert_eq!(read("1day"), Ok(Duration::from_secs(86_400)));
    for text in ["", "5", "soon", "-1s"] {
        let expected = format!("f.toml:3: per = \"{text}\" is not a time; write 250ms, 1s, 1m, 1h or 1day");
        assert_eq!(read(text), Err(expected));
    }
}

#[test]
fn errors_have_file_line_and_problem() {
    let error = Config::parse("f.toml", "# A comment.\n[[route]]\npath = \"a\"\n").unwrap_err();
    let problem = "path `a` must begin with a slash; write \"/a\"";
    assert_eq!((error.file(), error.line(), error.problem()), ("f.toml", 3, problem));
    assert_eq!(error.to_string(), format!("f.toml:3: {problem}"));
    assert_eq!(ConfigError::new(error.file(), error.line(), error.problem()), error);
}

#[test]
fn positions_are_found_on_their_line() {
    let source = SourceText::new("f.toml", "a\n\nbc\n");
    let lines: Vec<_> = (0..=6).map(|at| source.line(&(at..at))).collect();
    assert_eq!(lines, [1, 1, 2, 3, 3, 3, 4]);
}

#[test]
fn keys_are_names_or_lists() {
    let parse = |names: &[&str]| KeySpec::parse(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    for names in [
        &["global"][..],
        &["client-ip"],
        &["user"],
        &["path"],
        &["method"],
        &["header: X-Api-Key "],
        &["cookie:__Host-sid"],
        &["query:api key"],
        &["user", "path"],
    ] {
        assert!(parse(names).is_ok(), "{names:?}");
    }
    let Ok(KeySpec::Header(name)) = parse(&["header: X-Api-Key "]) else { panic!("it is a header") };
    assert_eq!(name, "x-api-key");
    for names in
        [&[][..], &["ip"], &["header:"], &["header:two words"], &["cookie:a=b"], &["query:"], &["user", "nobody"]]
    {
        let error = parse(names).err().unwrap();
        assert!(error.contains("write global, client-ip, header:NAME"), "{error}");
    }
}

/// `Peer` was taken for a header with that name, which any client could send.
#[test]
fn client_sources_ignore_case() {
    let read = |lines: &str| {
        let text = format!("[client-ip]\n{lines}\n[[route]]\npath = \"/\"\n");
        let config = Config::parse("f.toml", &text).map_err(|error| error.to_string())?;
        Ok::<_, String>(format!("{:?}", config.client_ip()))
    };
    for name in ["peer", "Peer", "PEER"] {
        assert_eq!(read(&format!("source = \"{name}\"")), Ok(format!("{:?}", ClientIp::peer())), "{name}");
        let trusting = read(&format!("source = \"{name}\"\nhops = 1")).unwrap_err();
        assert!(trusting.starts_with("f.toml:2: the socket's peer needs no trusted proxies"), "{trusting}");
    }
    for (name, expected) in [
        ("X-Forwarded-For", IpSource::XForwardedFor),
        ("FORWARDED", IpSource::Forwarded),
        ("X-Real-IP", IpSource::x_real_ip()),
    ] {
        let expected = ClientIp::new(expected, TrustedProxies::hops(1));
        assert_eq!(read(&format!("source = \"{name}\"\nhops = 1")), Ok(format!("{expected:?}")), "{name}");
    }
}

#[test]
fn routes_inherit_unset_response_settings() {
    let response = |text: &str| {
        let (file, raw) = value_of::<RawResponse>(text);
        ResponseSettings::parse(&SourceText::new("f.toml", &file), raw.get_ref()).unwrap()
    };
    let own = response("{ advertise = \"never\", retry-jitter = \"1s\" }");
    let general = response("{ advertise = \"rejected\", fields = \"draft-07\" }");
    let both = response("{ advertise = \"never\", retry-jitter = \"1s\", fields = \"draft-07\" }");
    assert_eq!(own.or(general), both);
}

/// The remaining quota is advertised always, on rejections, below a share, or never.
#[test]
fn advertise_is_parsed() {
    let parse = |text: &str| {
        let (file, raw) = value_of::<RawResponse>(&format!("{{ advertise = \"{text}\" }}"));
        ResponseSettings::parse(&SourceText::new("f.toml", &file), raw.get_ref()).map_err(|error| error.to_string())
    };
    for text in ["always", "rejected", "never", "below-0%", "below-20%", "below-100%"] {
        assert!(parse(text).is_ok(), "{text}");
    }
    for text in ["", "sometimes", "below-101%", "below-+5%", "below-5", "below-%"] {
        assert!(parse(text).is_err_and(|error| error.starts_with("f.toml:3: advertise = ")), "{text}");
    }
}

#[test]
fn paths_have_literals_or_whole_parameters() {
    for path in ["/", "/a", "/a/{id}/b", "/caf%C3%A9", "/v1.0/~me@home", "/a//b"] {
        assert_eq!(check_path(path), Ok(()), "{path}");
    }
    for path in ["", "a", "/a b", "/{}", "/a{id}", "/:id", "/*rest", "/50%", "/%zz", "/ä", "/{a}{b}"] {
        assert!(check_path(path).is_err_and(|problem| problem.contains("write")), "{path}");
    }
}

#[test]
fn parameter_names_do_not_distinguish_paths() {
    assert_eq!(without_parameter_names("/a/{id}/b"), without_parameter_names("/a/{name}/b"));
    assert_ne!(without_parameter_names("/a/{id}/b"), without_parameter_names("/a/{id}/c"));
    assert_ne!(without_parameter_names("/a/{id}"), without_parameter_names("/a/id"));
}

#[test]
fn no_message_repeats_a_secret() {
    for text in [
        "[redis]\nurl = 5\n",
        "[redis]\nurl = { password = \"swordfish\" }\n",
        "[redis]\nurl = \"redis://:swordfish@h\"\nsecret = [\"swordfish\"]\n",
        "[redis]\nurl = \"redis://:swordfish@h\nsecret = \"x\"\n",
        "[redis]\nurl = \"redis://:swordfish@h\"\nmaster = { name = \"swordfish\" }\n",
        "[[route]]\npath = \"/\"\nexempt = { headers = \"swordfish\" }\n",
        "[[route]]\npath = \"/\"\nexempt = { headers = [\"swordfish\"] }\n",
        "[[route]]\npath = \"/\"\nexempt = { headers = { x = { y = \"swordfish\" } } }\n",
        "[[route]]\npath = \"/\"\nexempt = { headers = { x = [\"swordfish\", 1] } }\n",
        "[[route]]\npath = \"/\"\nexempt = { header = { x = \"swordfish\" } }\n",
        "[[route]]\npath = \"/\"\nexempt = { headers = { x = \" swordfish\" } }\n[[route.policy]]\nname = \"p\"\nalgorithm = \"token-bucket\"\nlimit = 1\nper = \"1s\"\n",
    ] {
        let error = Config::parse("f.toml", text).unwrap_err().to_string();
        assert!(!error.contains("swordfish"), "{error}");
    }
}
