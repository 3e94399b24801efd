use serde_json::{Map, json};

use super::*;
use crate::config::from_table;

#[test]
fn the_text_says_the_defaults() {
    crate::config::assert_text_says_the_defaults::<PpoSettings>();
    crate::config::assert_text_says_the_defaults::<GrpoSettings>();
}

/// The share of a reward that is left at the first token of a reply of 400, of a critic that expects nothing.
#[test]
fn every_token_hears_of_the_reward_until_a_critic_is_pretrained() {
    let said: PpoSettings = from_table(&Map::new(), "nothing").unwrap();
    let first_token = |settings: &PpoSettings| {
        let Advantages::Critic(critic) = settings.advantages() else {
            unreachable!("PPO has one")
        };
        let mut rewards = vec![0.0; 400];
        rewards[399] = 1.0;
        let estimates = critic.gae.estimate(&rewards, &[0.0; 400], &[true; 400]);
        estimates.advantages[0]
    };
    assert!(first_token(&said.with_critic(false)) > 0.999);
    assert!(first_token(&said.with_critic(true)) < 1e-6);
    let lam = json!({ "lam": 0.99 });
    let said: PpoSettings = from_table(lam.as_object().unwrap(), "lam").unwrap();
    for pretrained in [false, true] {
        let found = said.with_critic(pretrained);
        assert_eq!(serde_json::to_value(found).unwrap()["lam"], 0.99);
    }
}

/// Each by the words that verl has for it.
#[test]
fn rloo_dr_grpo_and_gspo_are_settings() {
    let said = |table: serde_json::Value| -> GrpoSettings {
        from_table(table.as_object().unwrap(), "a table").unwrap()
    };
    let spread = |settings: &GrpoSettings| match settings.advantages() {
        Advantages::Group { rule } => rule.spread,
        Advantages::Critic(_) => unreachable!("GRPO has none"),
    };
    let usual = said(json!({}));
    assert_eq!(
        (
            spread(&usual),
            usual.loss_mode(),
            usual.trying.aggregation()
        ),
        (Spread::Absolute, LossMode::Vanilla, Aggregation::Trajectory)
    );
    let rloo = said(json!({ "adv_estimator": "rloo" }));
    assert_eq!(spread(&rloo), Spread::LeaveOneOut);
    assert!(rloo.check().is_ok());
    let both = said(json!({ "adv_estimator": "rloo", "normalize_std": true }));
    assert!(both.check().is_err());
    let gspo = said(json!({ "loss_mode": "gspo" }));
    let recipe = gspo.trying.recipe(gspo.advantages(), gspo.loss_mode());
    assert_eq!(recipe.loss_mode, LossMode::Gspo);
    let dr_grpo = said(json!({ "aggregation": "seq-mean-token-sum-norm", "max_tokens": 512 }));
    let recipe = dr_grpo
        .trying
        .recipe(dr_grpo.advantages(), dr_grpo.loss_mode());
    assert_eq!(recipe.aggregation, Aggregation::Constant { tokens: 512 });
}
