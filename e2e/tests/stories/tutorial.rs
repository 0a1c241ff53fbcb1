//! Story: the tutorial, command by command as the page has them, and what it promises after each.

use anyhow::{Context, Result, ensure};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::ConditionStatus::True;
use pgrouting_e2e::cluster::run;
use pgrouting_e2e::page::{Block, blocks};
use pgrouting_e2e::pool::{Pool, restarts};
use pgrouting_e2e::story::Story;

const SYSTEM: &str = "story-tutorial-system";

#[tokio::test]
async fn page_leads_from_nothing_to_split_and_back() -> Result<()> {
    let story = Story::set("tutorial").await?;
    clear(&story).await?;
    let page = Page::read(&story)?;
    page.run(&["1. Your names", "2. The operator", "3. The role's Secret"]).await?;

    let table = page.run(&["4. The pool"]).await?;
    let row = row_of(&table)?;
    ensure!(row.starts_with(&["orders".into(), "True".into(), "PoolingOnly".into()]), "{table}");
    let pool = Pool::new(&story.cluster, &story.namespace, "orders");
    let before = restarts(&pool.wait_for_pods(2, 60).await?);
    pool.wait_for_replicas(1).await?;

    page.run(&["5. Point the application at it"]).await?;
    let said = page.run(&["6. Look before anything moves"]).await?;
    ensure!(item_of(&said, "target")? == "primary", "{said}");
    let forecast = pool.rollout().await?.forecast.context("a forecast")?;
    ensure!(forecast.read_share_percent > 50, "{forecast:?}");

    let said = page.run(&["7. Promote"]).await?;
    ensure!(item_of(&said, "target")?.starts_with("replica"), "{said}");
    let rollout = pool.rollout().await?;
    assert_eq!((rollout.stage, rollout.last_rollback), (Stage::Split, None));
    let moves: Vec<_> = rollout.history.iter().map(|made| made.to.as_str()).collect();
    assert_eq!(moves, ["Split 100 %", "Split 50 %", "Split 10 %"], "step by step");
    pool.wait_for("SplitActive", True, 10).await?;
    assert_eq!(restarts(&pool.wait_for_pods(2, 30).await?), before, "nothing was restarted");

    page.run(&["8. Go back"]).await?;
    assert_eq!(pool.rollout().await?.stage, Stage::PoolingOnly);
    let log = story.cluster.kubectl(&["-n", &story.namespace, "logs", "application"]).await?;
    ensure!(!log.contains("error") && !log.contains("aborted"), "the application noticed: {log}");

    page.run(&["9. Take it away"]).await?;
    ensure!(page.is_run_to_its_end(), "a section of the page is not run");
    clear(&story).await?;
    story.end().await
}

/// The page begins with nothing: no release of an earlier run, and no definition that is not Helm's.
async fn clear(story: &Story) -> Result<()> {
    let helm = ["uninstall", "pgrouting", "--namespace", SYSTEM, "--ignore-not-found", "--wait"];
    run("helm", &helm, "").await?;
    story.cluster.remove_namespace(SYSTEM).await?;
    let definition = ["delete", "crd", "pgroutingpools.pgrouting.dev", "--ignore-not-found"];
    story.cluster.kubectl(&definition).await.map(drop)
}

/// The commands of the page, under the names of this cluster.
struct Page {
    blocks: Vec<Block>,
    names: String,
    done: std::cell::Cell<usize>,
}

impl Page {
    fn read(story: &Story) -> Result<Self> {
        let blocks: Vec<_> =
            blocks("tutorial.md")?.into_iter().filter(|block| block.language == "sh").collect();
        // The page's own block of names comes first, and keeps what is set.
        let names = format!(
            "set -euo pipefail\ncd {root}\nREGISTRY=localhost SYSTEM={SYSTEM} NAMESPACE={namespace} HOST_A=pg-b HOST_B=pg-a \
             DB_NAME={user} DB_USER={user} DB_PASSWORD={password} POSTGRES_IMAGE=localhost/postgres:15\n{own}",
            root = pgrouting_e2e::cluster::root().display(),
            namespace = story.namespace,
            user = story.login.user,
            password = story.login.password,
            own = blocks.first().context("the page has no commands")?.text,
        );
        Ok(Self { blocks, names, done: std::cell::Cell::new(0) })
    }

    /// Runs the blocks of these sections, which come next, and returns what they print.
    async fn run(&self, headings: &[&str]) -> Result<String> {
        let mut printed = String::new();
        for heading in headings {
            let next = self.blocks.get(self.done.get()).context("the page is over")?;
            ensure!(next.heading == *heading, "next on the page is {:?}, not {heading:?}", next.heading);
            while let Some(block) = self.blocks.get(self.done.get()).filter(|block| block.heading == *heading)
            {
                println!("{}", block.text);
                let output = run("bash", &["-c", &format!("{}{}", self.names, block.text)], "").await?;
                println!("{output}");
                printed.push_str(&output);
                self.done.set(self.done.get() + 1);
            }
        }
        Ok(printed)
    }

    fn is_run_to_its_end(&self) -> bool {
        self.done.get() == self.blocks.len()
    }
}

/// The words of the line under the columns.
fn row_of(table: &str) -> Result<Vec<String>> {
    let mut lines = table.lines().skip_while(|line| !line.starts_with("NAME"));
    let row = lines.nth(1).with_context(|| format!("no row in {table}"))?;
    Ok(row.split_whitespace().map(str::to_owned).collect())
}

/// The value of an item in what psql prints of EXPLAIN ROUTE.
fn item_of(printed: &str, item: &str) -> Result<String> {
    let rows = printed.lines().filter_map(|line| line.split_once('|'));
    let value = rows.filter(|(name, _)| name.trim() == item).map(|(_, value)| value.trim()).next_back();
    Ok(value.with_context(|| format!("no {item} in {printed}"))?.to_owned())
}
