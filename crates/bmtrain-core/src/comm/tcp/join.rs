//! Threads of a rank, from its start to its end.
//!
//! One thread takes this rank's messages to the connections, and each connection has one that writes and one that
//! reads.

use super::carrier::Carrier;
use super::{CHUNK, TcpLinks, TcpOptions};
use crate::comm::messages::job::MessageJob;
use crate::comm::messages::{self, MessageGroup};
use crate::error::{Error, Result};
use crate::limits::Resource;
use std::sync::Arc;

/// Stack of a connection's thread, which needs little.
const STACK: usize = 256 << 10;

/// The ranks of a group.
pub(super) type TcpGroup = MessageGroup<Session>;

/// This process's membership in the job.
#[derive(Debug)]
pub(super) struct Session {
    carrier: Arc<Carrier>,
}

pub(super) fn join(links: TcpLinks, options: TcpOptions) -> Result<TcpGroup> {
    links.check(options)?;
    let TcpLinks { rank, hosts, streams } = links;
    let job = MessageJob::new((rank, hosts.len()), options.deadline, CHUNK, hosts);
    let carrier = Arc::new(Carrier::new(job, streams)?);
    // From here on it ends the threads, also when one is refused.
    let session = Arc::new(Session { carrier });
    let threads = || {
        start(&session.carrier, "tcp", Carrier::run)?;
        for link in session.carrier.links() {
            let (reader, writer) = (Arc::clone(&link), link);
            start(&session.carrier, "tcp read", move |carrier| carrier.read(&reader))?;
            start(&session.carrier, "tcp write", move |carrier| carrier.write(&writer))?;
        }
        Ok(())
    };
    let started: Result<()> = threads();
    if let Err(error) = started {
        session.carrier.give_up(&error);
        return Err(error);
    }
    Ok(MessageGroup::world(session))
}

fn start(carrier: &Arc<Carrier>, name: &str, work: impl FnOnce(&Carrier) + Send + 'static) -> Result<()> {
    let carrier = Arc::clone(carrier);
    let thread = std::thread::Builder::new().name(name.into()).stack_size(STACK);
    let started = thread.spawn(move || work(&carrier));
    started.map(drop).map_err(|error| Error::refused("thread of a connection", Resource::Threads, error))
}

impl messages::Session for Session {
    fn job(&self) -> &MessageJob {
        self.carrier.job()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let job = self.carrier.job();
        job.end(job.leave());
    }
}
