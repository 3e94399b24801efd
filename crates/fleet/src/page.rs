//! A page of what a fleet does, which loads itself again.

use maud::{DOCTYPE, Markup, html};

use crate::status::FleetStatus;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}\
table{border-collapse:collapse;width:100%;margin-bottom:2rem}th,td{text-align:left;padding:.3rem .8rem;border-bottom:1px solid #8884}\
@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}";

pub(crate) fn page(status: &FleetStatus) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                meta http-equiv="refresh" content="5";
                title { "Fleet" }
                style { (STYLE) }
            }
            body {
                h1 { "Fleet" }
                p {
                    (status.workers.len()) " workers, " (status.answers_a_minute) " answers a minute, "
                    (status.results) " results kept"
                }
                h2 { "Workers" }
                table {
                    thead { tr { th { "Worker" } th { "Device" } th { "Slots" } th { "At work on" } th { "Answers" } th { "Last minute" } th { "Failed tries" } } }
                    tbody {
                        @for worker in &status.workers {
                            tr {
                                td { (worker.name) @if worker.draining { " (draining)" } }
                                td { (worker.pool.device) }
                                td { (worker.slots) }
                                td { (worker.busy.join(", ")) }
                                td { (worker.answered) }
                                td { (worker.answered_last_minute) }
                                td { (worker.failed_tries) }
                            }
                        }
                    }
                }
                h2 { "Queues" }
                table {
                    thead { tr { th { "Pool" } th { "Waiting" } th { "Under way" } } }
                    tbody {
                        @for queue in &status.queues {
                            tr { td { (queue.pool) } td { (queue.waiting) } td { (queue.under_way) } }
                        }
                    }
                }
                @if !status.failed_tries.is_empty() {
                    h2 { "Latest failed tries" }
                    table {
                        thead { tr { th { "Task" } th { "Worker" } th { "Try" } th { "Why" } } }
                        tbody {
                            @for failed in status.failed_tries.iter().rev() {
                                tr { td { (failed.task) } td { (failed.worker) } td { (failed.tried) } td { (failed.message) } }
                            }
                        }
                    }
                }
            }
        }
    }
}
