data {
  int<lower=0> N;
  int<lower=1> K;
  matrix[N, K] x;
  array[N] int<lower=0, upper=1> y;
}
parameters {
  vector[K] beta;
  real<lower=0> scale;
}
model {
  scale ~ lognormal(0, 0.5);
  beta ~ normal(0, scale);
  y ~ bernoulli_logit(x * beta);
}
