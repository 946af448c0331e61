X, y = digits(400)

model = (
    SequentialBuilder(64, seed=1)
    .dense(32)
    .relu()
    .dense(10)
    .loss("softmax_cross_entropy")
    .optimizer("adam")
    .alpha(0.005)
    .batch(32)
    .build()
)
