//! `alternatives`: policies on a route that are tried in order. The first that have room are charged.

use toml::Spanned;

use super::error::ConfigError;
use super::format::OneOrMany;
use super::source::SourceText;
use tower_sluice::Policy;
use tower_sluice::layer::IntoPolicies;
use tower_sluice::policy::Policies;

/// Combines a route's policies. Those that are not alternatives have to admit a request in any case.
pub(crate) fn combine(
    source: &SourceText<'_>,
    policies: Vec<Policy>,
    alternatives: &Spanned<Vec<Spanned<OneOrMany>>>,
) -> Result<Policies, ConfigError> {
    if alternatives.get_ref().len() < 2 {
        let problem =
            "alternatives needs two at least; write the names of policies, in the order in which they are tried";
        return Err(source.error(&alternatives.span(), problem));
    }
    let mut policies: Vec<Option<Policy>> = policies.into_iter().map(Some).collect();
    let mut choices: Option<Policies> = None;
    for names in alternatives.get_ref() {
        let mut members = Vec::new();
        for name in names.get_ref().as_slice() {
            let place = policies.iter_mut().find(|policy| policy.as_ref().is_some_and(|policy| policy.name() == name));
            members.push(place.and_then(Option::take).ok_or_else(|| {
                let problem = format!(
                    "alternatives names `{name}`, which is no policy of this route, or is named twice; write each policy once"
                );
                source.error(&names.span(), problem)
            })?);
        }
        if members.is_empty() {
            let problem = "an alternative without a policy would always have room; write names of policies into it";
            return Err(source.error(&names.span(), problem));
        }
        choices = Some(match choices {
            Some(choices) => choices.or_else(members),
            None => members.into_policies(),
        });
    }
    let others: Vec<Policy> = policies.into_iter().flatten().collect();
    Ok(others.into_policies().and(choices.expect("there are two")))
}
