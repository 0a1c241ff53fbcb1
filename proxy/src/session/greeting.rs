//! What a client is told when it is logged in: the values that a server reports to a session like this.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cancel::CancelHandle;
use crate::classify::kinds::Kinds;
use crate::error::{ClientError, ErrorKind};
use crate::pool::lease::Lease;
use crate::server::connect::ConnectError;
use crate::server::connection::Parameters;
use crate::server::question::Question;
use crate::server::settings::APPLICATION_NAME;
use crate::session::client::Client;
use crate::session::context::Greeting;
use crate::session::end::End;
use crate::session::tenancy::{Refusal, Tenancy};
use crate::wire::backend::{error_field, put_backend_key, put_error, put_parameter_status, put_ready};
use crate::wire::sqlstate;

/// Greets the client. A session of its own connection gets it here, as it would log in without a proxy; for any other a
/// server is asked, unless one was a moment ago. It may refuse, as for a database that does not exist.
///
/// # Errors
/// When there is no server, or it refuses.
pub async fn greet(
    client: &mut Client,
    tenancy: &mut Tenancy,
    cancel: &mut CancelHandle,
) -> Result<Option<Lease>, End> {
    if !client.state.is_tracked {
        // Boxed, so that the rare wait does not make every session larger.
        let lease = Box::pin(lease_with_settings(client, tenancy)).await?;
        cancel.take_process_id(lease.cancel.key.process_id);
        put_greeting(client, &lease.parameters, cancel);
        return Ok(Some(lease));
    }
    let context = Arc::clone(&tenancy.context);
    let key = (tenancy.identity.id, tenancy.access, client.state.startup.without_application_name());
    let greeting = match context.greetings.find(&key) {
        Some(greeting) => greeting,
        None => {
            let greeting = Arc::new(Box::pin(ask_for_greeting(client, tenancy)).await?);
            context.greetings.keep(key, Arc::clone(&greeting));
            greeting
        }
    };
    client.state.normalize(&greeting.settings);
    put_greeting(client, &greeting.parameters, cancel);
    Ok(None)
}

fn put_greeting(client: &mut Client, parameters: &Parameters, cancel: &CancelHandle) {
    let application_name = client.state.settings.value(APPLICATION_NAME).map(as_application_name);
    let application_name = application_name.unwrap_or_default();
    let out = client.outbox.bytes();
    for (name, value) in parameters.iter() {
        let value = if name == APPLICATION_NAME.as_bytes() { &application_name } else { value };
        put_parameter_status(out, name, value);
    }
    put_backend_key(out, &cancel.key);
    put_ready(out, b'I');
}

/// An application's name as PostgreSQL takes it: what is not printable ASCII becomes `?`, and 63 bytes are kept
/// (`pg_clean_ascii`, `NAMEDATALEN`).
fn as_application_name(name: &str) -> Vec<u8> {
    let is_printable = |byte: &u8| (b' '..=b'~').contains(byte);
    name.bytes().take(63).map(|byte| if is_printable(&byte) { byte } else { b'?' }).collect()
}

/// A connection that has the settings of the startup packet.
async fn lease_with_settings(client: &mut Client, tenancy: &mut Tenancy) -> Result<Lease, End> {
    let settings = Arc::clone(&client.state.settings);
    let leased = match tenancy.lease_at_once(&settings) {
        Ok(lease) => Ok(lease),
        Err(asked) => tenancy.lease_in_time(&settings, asked).await,
    };
    let mut lease = match leased {
        Ok(lease) => lease,
        Err(Refusal::Proxy(error)) => return Err(End::Told(error.into_fatal())),
        Err(Refusal::Server(message)) => return Err(End::Refused(message)),
    };
    let change = lease.settings.change_to(&settings);
    if !change.is_empty() {
        // What the server has to say about them is the client's.
        match lease.run_beside(&change, client.outbox.bytes()).await {
            Ok(_) => lease.settings = settings,
            Err(error) => return Err(refused(lease, error)),
        }
    }
    Ok(lease)
}

async fn ask_for_greeting(client: &mut Client, tenancy: &mut Tenancy) -> Result<Greeting, End> {
    let mut lease = lease_with_settings(client, tenancy).await?;
    let startup = client.state.startup.values();
    let mut settings = BTreeMap::new();
    if startup.keys().any(|name| name != APPLICATION_NAME) {
        // As the server spells them, so that they are recognized when it is asked later.
        let dotted = startup.keys().map(String::as_str).filter(|name| name.contains('.'));
        let sql = Question::new(Kinds::SETTING, Vec::new()).sql(dotted, lease.major_version());
        let rows = match lease.run(&sql).await {
            Ok(rows) => rows,
            Err(error) => return Err(refused(lease, error)),
        };
        let pairs = rows.into_iter().filter_map(|row| {
            let [_, name, value] = <[_; 3]>::try_from(row).ok()?;
            Some((name?.to_ascii_lowercase(), value?))
        });
        settings = pairs.filter(|(name, _)| startup.contains_key(name) && name != APPLICATION_NAME).collect();
    }
    let parameters = lease.parameters.clone();
    lease.give_back();
    Ok(Greeting { parameters, settings })
}

/// The server does not take the settings, or breaks off.
fn refused(lease: Lease, error: ConnectError) -> End {
    match error {
        ConnectError::Refused(message) => {
            // The statements before the one that failed were rolled back with it.
            lease.give_back();
            End::Refused(as_fatal(&message))
        }
        error => {
            tracing::warn!(%error, "the server broke off at a login");
            End::Told(ClientError::fatal(
                ErrorKind::Server,
                sqlstate::CONNECTION_FAILURE,
                "the server closed the connection unexpectedly",
            ))
        }
    }
}

/// A server's error as PostgreSQL reports it while a session starts: FATAL.
fn as_fatal(message: &[u8]) -> Vec<u8> {
    let text = |kind| String::from_utf8_lossy(error_field(message, kind).unwrap_or_default()).into_owned();
    let fields = [(b'C', text(b'C')), (b'M', text(b'M')), (b'D', text(b'D')), (b'H', text(b'H'))];
    let mut kept: Vec<(u8, &str)> = vec![(b'S', "FATAL"), (b'V', "FATAL")];
    kept.extend(
        fields.iter().filter(|(_, text)| !text.is_empty()).map(|(kind, text)| (*kind, text.as_str())),
    );
    let mut out = Vec::new();
    put_error(&mut out, &kept);
    out
}
