// Package redistest gives this module's tests the Redis servers they run on: miniredis, a real redis-server and a Redis
// Cluster of three nodes, and the means to break what lies between them and a client.
// A package's TestMain calls [Main].
//
// # Servers
//
// [Each] runs a test on all three kinds; [Mini], [Real] and [Cluster] give one. These servers are shared by all tests
// of a test binary and started on first use, so a test never flushes, restarts or slows them and takes its names from
// [Name]. A test that does such things to its server has one of its own from [StartReal] or [StartMini].
//
// The environment says which tests run, and on which server, whose version they print: see [ServerEnv], [RequireEnv],
// [AllEnv] and [RealTimeEnv].
//
// # Faults
//
// [Proxy] stands between a client and a server, beneath the client, so that what go-redis does about a fault
// (resending, reconnecting) is part of the test. [FailHook] works above that: it puts an error in the place of a
// command's outcome. [Child] is a process to kill, or to stop and resume.
//
// A miniredis never ages keys by itself, and hands messages over on a goroutine of its own: one may arrive after the
// reply to a command that was sent later, as in a cluster.
package redistest
