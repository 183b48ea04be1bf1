// Command encodings shows how tasks get their keys whose payload is not JSON, or is
// JSON in an envelope. It asks no Redis: it makes the keys and prints them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/hibiken/asynq"
	"github.com/vmihailenco/msgpack/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/automutex/automutex"
)

// order is what tasks carry as msgpack.
type order struct {
	Customer string `msgpack:"customer"`
}

// keyMaker makes keys as a Guard with that Config does, and needs no Redis.
func keyMaker() (*automutex.KeyMaker, error) {
	return automutex.NewKeyMaker(automutex.Config{Decode: unwrap, Rules: []automutex.Rule{
		{Task: "invoice:send", Key: automutex.KeyWith(func(payload []byte) (*structpb.Struct, error) {
			m := &structpb.Struct{} // your message type
			return m, proto.Unmarshal(payload, m)
		}, func(m *structpb.Struct) []string {
			return []string{m.GetFields()["customer"].GetStringValue()}
		})},

		{Task: "order:ship", Key: automutex.KeyWith(func(payload []byte) (o order, err error) {
			err = msgpack.Unmarshal(payload, &o)
			return o, err
		}, func(o order) []string {
			return []string{o.Customer}
		})},

		{Task: "mail:send", On: []string{"to"}},
	}})
}

// unwrap returns the payload inside the envelope {"trace": ..., "data": ...} of some tasks.
func unwrap(t *asynq.Task) ([]byte, error) {
	if t.Type() != "mail:send" {
		return t.Payload(), nil // no envelope
	}
	var envelope struct {
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(t.Payload(), &envelope); err != nil {
		// Without the KeyError the task would come back again and again.
		return nil, &automutex.KeyError{Task: t.Type(), Field: "data"}
	}
	return envelope.Data, nil
}

func run(out io.Writer) error {
	keys, err := keyMaker()
	if err != nil {
		return err
	}
	message, err := structpb.NewStruct(map[string]any{"customer": "acme"})
	if err != nil {
		return err
	}
	invoice, err := proto.Marshal(message)
	if err != nil {
		return err
	}
	shipped, err := msgpack.Marshal(order{Customer: "acme"})
	if err != nil {
		return err
	}
	for _, task := range []*asynq.Task{
		asynq.NewTask("invoice:send", invoice),
		asynq.NewTask("order:ship", shipped),
		asynq.NewTask("mail:send", []byte(`{"trace": "4bf92f", "data": {"to": "mona@example.com"}}`)),
		asynq.NewTask("order:ship", []byte("{}")), // not what the rule decodes
	} {
		if its, err := keys.Keys(context.Background(), task); err != nil {
			fmt.Fprintln(out, err)
		} else {
			fmt.Fprintln(out, its[0])
		}
	}
	return nil
}

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
