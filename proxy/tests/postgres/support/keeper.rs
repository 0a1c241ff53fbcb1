//! Sees to it that no proxy outlives the tests, however they end.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Reads `+ PID DIRECTORY` and `- PID` until our end of the pipe is closed, then ends and removes what is left.
const SCRIPT: &str = r#"
kept=
while read -r sign pid directory; do
    others=
    for each in $kept; do
        [ "${each%%:*}" = "$pid" ] || others="$others $each"
    done
    kept=$others
    [ "$sign" = - ] || kept="$kept $pid:$directory"
done
for each in $kept; do
    kill -s KILL "${each%%:*}"
    rm -rf "${each#*:}"
done
"#;

static KEEPER: Mutex<Option<(Child, ChildStdin)>> = Mutex::new(None);

/// From now on the process ends with ours, and its directory with it.
pub fn keep(process: &Child, directory: &Path) {
    let mut keeper = locked();
    let (_, pipe) = keeper.get_or_insert_with(|| {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pipe = child.stdin.take().unwrap();
        (child, pipe)
    });
    writeln!(pipe, "+ {} {}", process.id(), directory.display()).unwrap();
}

/// The process has ended and been waited for.
pub fn let_go(process: &Child) {
    if let Some((_, pipe)) = locked().as_mut() {
        let _ = writeln!(pipe, "- {}", process.id());
    }
}

fn locked() -> MutexGuard<'static, Option<(Child, ChildStdin)>> {
    KEEPER.lock().unwrap_or_else(PoisonError::into_inner)
}
