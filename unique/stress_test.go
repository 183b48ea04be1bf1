package unique

const workerEnv = "AUTOMUTEX_TEST_UNIQUE_WORKER"

func workerMain() {}
