//! A long run at random on every policy. The long version is `examples/soak.rs`.

use girih_runtime::suite::{self, Soak};

#[test]
fn after_a_long_run_in_which_calls_fail_every_policy_has_given_everything_back() {
    let run = Soak {
        operations: 12_000,
        seed: 7,
        device_bytes: 2 << 30,
        check_every: 20,
        fault_every: 300,
    };
    for policy in suite::every_policy(run.seed) {
        let name = policy.name();
        let done = suite::soak(&run, policy);
        assert!(done.faults > 8 && done.failed > 20, "{name}: {done:?}");
        assert!(name != "stitch" || done.stitches > 100, "{name}: {done:?}");
    }
}
