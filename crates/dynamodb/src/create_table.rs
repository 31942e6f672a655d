//! [`Dynamo::create_table`]: the table with its key and its expiry.

use std::time::Duration;

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableDescription, TableStatus,
    TimeToLiveSpecification, TimeToLiveStatus,
};

use crate::dynamo::Dynamo;
use crate::fault::{DynamoFault, FaultKind, of_part, of_request};
use crate::table::{EXPIRY, KEY, has_code};

/// How often and for how long we ask whether a new table is ready. AWS takes some ten seconds.
const PAUSE: Duration = Duration::from_millis(500);
const TRIES: u32 = 240;

impl Dynamo {
    /// Creates the table if it does not exist, with key `k`, on-demand capacity, and items that expire by `x`. Returns
    /// when it can be used. If the table exists, checks its key and sets the expiry.
    ///
    /// For set-ups without another tool for infrastructure; a service does not need permission for it. Needs the
    /// actions `dynamodb:CreateTable`, `DescribeTable`, `DescribeTimeToLive` and `UpdateTimeToLive`.
    ///
    /// # Errors
    ///
    /// [`FaultKind::Misconfigured`] if the table has another key, [`FaultKind::TimedOut`] if a new one is not ready
    /// within two minutes, and the other kinds if a request fails.
    pub async fn create_table(&self) -> Result<(), DynamoFault> {
        let table = self.table();
        let request = table.client.create_table().table_name(&*table.name).billing_mode(BillingMode::PayPerRequest);
        let key = KeySchemaElement::builder().attribute_name(KEY).key_type(KeyType::Hash).build();
        let kind = AttributeDefinition::builder().attribute_name(KEY).attribute_type(ScalarAttributeType::S).build();
        let request = request.key_schema(key.map_err(of_part)?).attribute_definitions(kind.map_err(of_part)?);
        if let Err(error) = request.send().await {
            // It exists already.
            if !has_code(&error, "ResourceInUseException") {
                return Err(of_request(error));
            }
        }
        self.await_table().await?;
        self.set_expiry().await
    }

    async fn await_table(&self) -> Result<(), DynamoFault> {
        let table = self.table();
        for _ in 0..TRIES {
            let answer = table.client.describe_table().table_name(&*table.name).send().await.map_err(of_request)?;
            if let Some(found) = answer.table.filter(|found| found.table_status() == Some(&TableStatus::Active)) {
                return check_key(&found);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(DynamoFault::new(FaultKind::TimedOut, format!("the table {} is not ready yet", table.name)))
    }

    async fn set_expiry(&self) -> Result<(), DynamoFault> {
        let table = self.table();
        let answer = table.client.describe_time_to_live().table_name(&*table.name).send().await.map_err(of_request)?;
        let status = answer.time_to_live_description.and_then(|found| found.time_to_live_status);
        if matches!(status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)) {
            return Ok(());
        }
        let expiry = TimeToLiveSpecification::builder().attribute_name(EXPIRY).enabled(true).build();
        let request = table.client.update_time_to_live().table_name(&*table.name);
        request.time_to_live_specification(expiry.map_err(of_part)?).send().await.map_err(of_request)?;
        Ok(())
    }
}

fn check_key(table: &TableDescription) -> Result<(), DynamoFault> {
    let is_ours = match table.key_schema() {
        [key] => key.attribute_name() == KEY && key.key_type() == &KeyType::Hash,
        _ => false,
    };
    let is_text =
        |kind: &AttributeDefinition| kind.attribute_name() != KEY || kind.attribute_type() == &ScalarAttributeType::S;
    if is_ours && table.attribute_definitions().iter().all(is_text) {
        return Ok(());
    }
    let name = table.table_name().unwrap_or_default();
    let problem = format!("the table {name} has another key than the string `k` alone; name another table");
    Err(DynamoFault::new(FaultKind::Misconfigured, problem))
}
