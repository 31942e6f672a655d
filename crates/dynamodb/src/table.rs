//! The table: one request each to write, read and delete an item.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure};
use tokio::task::JoinSet;
use tower_sluice::store::remote::GaveUp;
use tower_sluice::time::{Clock, Timestamp};

use crate::clock_check::{AnswerDate, ClockCheck};
use crate::fault::{DynamoFault, of_request};

/// The attribute that is an item's key.
pub(crate) const KEY: &str = "k";

/// The attribute that says when an item may be deleted, in seconds since 1970.
pub(crate) const EXPIRY: &str = "x";

/// An item's attributes.
pub(crate) type Item = HashMap<String, AttributeValue>;

/// A conditional write of one item.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Write {
    pub(crate) update: String,
    pub(crate) condition: String,
    pub(crate) names: Vec<(String, String)>,
    pub(crate) values: Vec<(String, AttributeValue)>,
}

impl Write {
    pub(crate) fn new(update: impl Into<String>, condition: impl Into<String>) -> Self {
        Self { update: update.into(), condition: condition.into(), ..Self::default() }
    }

    /// Binds a placeholder in the expressions to an attribute's name.
    pub(crate) fn name(mut self, place: impl Into<String>, name: impl Into<String>) -> Self {
        self.names.push((place.into(), name.into()));
        self
    }

    /// Binds a placeholder in the expressions to a number.
    pub(crate) fn number(self, place: &'static str, number: impl Into<u128>) -> Self {
        self.value(place, AttributeValue::N(number.into().to_string()))
    }

    /// Binds a placeholder in the expressions to a text.
    pub(crate) fn text(self, place: &'static str, text: impl Into<String>) -> Self {
        self.value(place, AttributeValue::S(text.into()))
    }

    /// Raises a bound number to at least `least`.
    pub(crate) fn at_least(mut self, place: &str, least: u64) -> Self {
        for (_, value) in self.values.iter_mut().filter(|(name, _)| name == place) {
            let number: Option<u64> = value.as_n().ok().and_then(|number| number.parse().ok());
            if number.is_none_or(|number| number < least) {
                *value = AttributeValue::N(least.to_string());
            }
        }
        self
    }

    /// Binds a placeholder in the expressions to a value.
    pub(crate) fn value(mut self, place: impl Into<String>, value: AttributeValue) -> Self {
        self.values.push((place.into(), value));
        self
    }
}

/// Reads a number from an item. `None` if it is missing or out of range.
pub(crate) fn number<T: FromStr>(item: &Item, name: &str) -> Option<T> {
    item.get(name)?.as_n().ok()?.parse().ok()
}

/// A write's outcome.
#[derive(Debug)]
pub(crate) enum Written {
    /// It was applied to this item; `None` if the item did not exist.
    Applied(Option<Item>),
    /// Its condition did not hold for this item.
    Unmet(Option<Item>),
}

/// A table, and the clock by which its items are written.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) client: Client,
    pub(crate) name: Arc<str>,
    pub(crate) clock: SharedClock,
    pub(crate) clock_check: Arc<ClockCheck>,
    /// By how much clocks may differ.
    pub(crate) clock_error: Duration,
}

/// A clock of any type.
#[derive(Clone)]
pub(crate) struct SharedClock(pub(crate) Arc<dyn Clock>);

impl std::fmt::Debug for SharedClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

impl Table {
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.0.now()
    }

    /// Sends a request, and judges our clock by the answer.
    async fn judged<T, E>(
        &self,
        send: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        date: &AnswerDate,
    ) -> Result<Result<T, SdkError<E, HttpResponse>>, DynamoFault> {
        let sent = self.now();
        let answer = send.await;
        if let Some(date) = date.get() {
            self.clock_check.judge(Some(date), (sent, self.now()), self.clock_error)?;
        } else if answer.is_ok() {
            self.clock_check.judge(None, (sent, sent), self.clock_error)?;
        }
        Ok(answer)
    }

    /// Writes an item if its condition holds.
    pub(crate) async fn write(&self, key: &str, write: Write) -> Result<Written, DynamoFault> {
        let date = AnswerDate::default();
        let names = Some(write.names.into_iter().collect::<HashMap<_, _>>()).filter(|names| !names.is_empty());
        let values = write.values.into_iter().collect();
        let request = self.client.update_item().table_name(&*self.name).key(KEY, AttributeValue::S(key.to_owned()));
        let request = request.update_expression(write.update).condition_expression(write.condition);
        let request = request.set_expression_attribute_names(names);
        let request = request.set_expression_attribute_values(Some(values)).return_values(ReturnValue::AllOld);
        let request = request.return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let answer = self.judged(request.customize().interceptor(date.clone()).send(), &date).await?;
        match answer {
            // For an item that did not exist, some answers have no attributes, and some have the key.
            Ok(output) => Ok(Written::Applied(output.attributes.filter(|item| item.len() > 1))),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(unmet)) => {
                    Ok(Written::Unmet(unmet.item().filter(|item| !item.is_empty()).cloned()))
                }
                _ => Err(of_request(error)),
            },
        }
    }

    /// Writes different items by requests that are in flight together, each if its condition holds.
    pub(crate) async fn write_each(&self, writes: impl Iterator<Item = (String, Write)>) -> Result<(), DynamoFault> {
        let write = |(key, write): (String, Write)| {
            let table = self.clone();
            async move { table.write(&key, write).await.map(drop) }
        };
        all(writes.map(write).collect()).await
    }

    /// Deletes items by requests that are in flight together, each if the condition of `only_if` holds.
    pub(crate) async fn delete_each(
        &self,
        keys: impl Iterator<Item = String>,
        only_if: &Write,
    ) -> Result<(), DynamoFault> {
        let delete = |key: String| {
            let (table, only_if) = (self.clone(), only_if.clone());
            async move { table.delete_if(&key, only_if).await.map(drop) }
        };
        all(keys.map(delete).collect()).await
    }

    /// Reads an item as the last write left it.
    pub(crate) async fn read(&self, key: &str) -> Result<Option<Item>, DynamoFault> {
        let date = AnswerDate::default();
        let request = self.client.get_item().table_name(&*self.name).key(KEY, AttributeValue::S(key.to_owned()));
        let send = request.consistent_read(true).customize().interceptor(date.clone()).send();
        Ok(self.judged(send, &date).await?.map_err(of_request)?.item.filter(|item| !item.is_empty()))
    }

    /// Deletes an item if it exists, and returns it.
    pub(crate) async fn delete(&self, key: &str) -> Result<Option<Item>, DynamoFault> {
        let date = AnswerDate::default();
        let request = self.client.delete_item().table_name(&*self.name).key(KEY, AttributeValue::S(key.to_owned()));
        let send = request.return_values(ReturnValue::AllOld).customize().interceptor(date.clone()).send();
        Ok(self.judged(send, &date).await?.map_err(of_request)?.attributes)
    }

    /// Deletes an item if the condition of `only_if` holds, and returns whether it did.
    pub(crate) async fn delete_if(&self, key: &str, only_if: Write) -> Result<bool, DynamoFault> {
        let date = AnswerDate::default();
        let request = self.client.delete_item().table_name(&*self.name).key(KEY, AttributeValue::S(key.to_owned()));
        let values = only_if.values.into_iter().collect();
        let request = request.condition_expression(only_if.condition).set_expression_attribute_values(Some(values));
        match self.judged(request.customize().interceptor(date.clone()).send(), &date).await? {
            Ok(_) => Ok(true),
            Err(error) if has_code(&error, "ConditionalCheckFailedException") => Ok(false),
            Err(error) => Err(of_request(error)),
        }
    }
}

/// Awaits requests that are in flight together. After an error, it cancels the others.
async fn all(mut requests: JoinSet<Result<(), DynamoFault>>) -> Result<(), DynamoFault> {
    while let Some(ended) = requests.join_next().await {
        ended.map_err(|_| GaveUp::Cancelled)??;
    }
    Ok(())
}

/// Whether an error of the service has this code.
pub(crate) fn has_code<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>, code: &str) -> bool {
    error.as_service_error().and_then(ProvideErrorMetadata::code) == Some(code)
}
