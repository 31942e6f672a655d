//! The choice of one policy among several, by the request.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::http::head::RequestHead;

/// Returns the index of the policy that applies.
pub(super) type Choose = Arc<dyn Fn(&RequestHead<'_>) -> usize + Send + Sync>;

/// The position of a policy among several of which exactly one applies to each request.
pub(super) struct Tier {
    pub(super) choose: Choose,
    pub(super) index: usize,
}

impl Tier {
    /// Whether the policy at this position applies to a request.
    pub(super) fn is_chosen(&self, head: &RequestHead<'_>, choices: &mut Choices) -> bool {
        choices.of(&self.choose, head) == self.index
    }
}

/// The choices made for one request. Each [`Choose`] function is called once per request: two calls could return
/// different tiers, so that no policy applies.
#[derive(Default)]
pub(crate) struct Choices(SmallVec<[Choice; 1]>);

struct Choice {
    /// The address of the function.
    function: usize,
    index: usize,
}

impl Choices {
    fn of(&mut self, choose: &Choose, head: &RequestHead<'_>) -> usize {
        let function = Arc::as_ptr(choose).cast::<()>().addr();
        if let Some(made) = self.0.iter().find(|choice| choice.function == function) {
            return made.index;
        }
        let index = choose(head);
        self.0.push(Choice { function, index });
        index
    }
}
