// What a franz-go program does with a broker: admin, produce, groups, transactions, users, rules, quotas.
// It prints one line for each step that went well, and ends with an error at the first that did not.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const records = 50

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 240*time.Second)
	defer cancel()
	seeds := kgo.SeedBrokers(strings.Split(os.Args[1], ",")...)
	for _, step := range []struct {
		name string
		run  func(context.Context, kgo.Opt) error
	}{
		{"admin", admin}, {"produce", produce}, {"group", group}, {"transactions", transactions},
		{"users", users}, {"quotas", quotas},
	} {
		if err := step.run(ctx, seeds); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", step.name, err)
			os.Exit(1)
		}
		fmt.Println(step.name)
	}
}

func administrator(seeds kgo.Opt) (*kadm.Client, error) {
	client, err := kgo.NewClient(seeds)
	if err != nil {
		return nil, err
	}
	return kadm.NewClient(client), nil
}

func admin(ctx context.Context, seeds kgo.Opt) error {
	adm, err := administrator(seeds)
	if err != nil {
		return err
	}
	defer adm.Close()
	for _, name := range []string{"franz", "franz-transactions"} {
		if _, err := adm.CreateTopic(ctx, 3, -1, nil, name); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return err
		}
	}
	configs, err := adm.DescribeTopicConfigs(ctx, "franz")
	if err != nil {
		return err
	}
	if len(configs) != 1 || len(configs[0].Configs) == 0 {
		return fmt.Errorf("no configs: %v", configs)
	}
	brokers, err := adm.ListBrokers(ctx)
	if err == nil && len(brokers) == 0 {
		err = errors.New("no brokers")
	}
	return err
}

func produce(ctx context.Context, seeds kgo.Opt) error {
	for _, codec := range []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	} {
		client, err := kgo.NewClient(seeds, kgo.ProducerBatchCompression(codec), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
		if err != nil {
			return err
		}
		for n := 0; n < records/5; n++ {
			client.Produce(ctx, &kgo.Record{Topic: "franz", Value: []byte("value")}, nil)
		}
		err = client.Flush(ctx)
		client.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func group(ctx context.Context, seeds kgo.Opt) error {
	seen := map[string]bool{}
	var members []*kgo.Client
	for n := 0; n < 2; n++ {
		client, err := kgo.NewClient(seeds, kgo.ConsumerGroup("franz-group"), kgo.ConsumeTopics("franz"),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if err != nil {
			return err
		}
		defer client.Close()
		members = append(members, client)
	}
	for turn := 0; len(seen) < records; turn++ {
		poll, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		fetches := members[turn%2].PollFetches(poll)
		cancel()
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d read: %w", len(seen), records, ctx.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) { seen[fmt.Sprint(r.Partition, r.Offset)] = true })
	}
	for _, each := range members {
		if err := each.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
	}
	adm := kadm.NewClient(members[0])
	lags, err := adm.Lag(ctx, "franz-group")
	if err != nil {
		return err
	}
	return lags.Error()
}

func transactions(ctx context.Context, seeds kgo.Opt) error {
	client, err := kgo.NewClient(seeds, kgo.TransactionalID("franz-id"), kgo.DefaultProduceTopic("franz-transactions"))
	if err != nil {
		return err
	}
	defer client.Close()
	for n := 0; n < 4; n++ {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		word, end := "kept", kgo.TryCommit
		if n%2 == 1 {
			word, end = "dropped", kgo.TryAbort
		}
		for i := 0; i < 3; i++ {
			client.Produce(ctx, kgo.StringRecord(fmt.Sprint(word, n, i)), nil)
		}
		if err := client.Flush(ctx); err != nil {
			return err
		}
		if err := client.EndTransaction(ctx, end); err != nil {
			return err
		}
	}
	return readCommitted(ctx, seeds)
}

func readCommitted(ctx context.Context, seeds kgo.Opt) error {
	client, err := kgo.NewClient(seeds, kgo.ConsumeTopics("franz-transactions"),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer client.Close()
	var found []string
	for len(found) < 6 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) { found = append(found, string(r.Value)) })
	}
	sort.Strings(found)
	for _, each := range found {
		if !strings.HasPrefix(each, "kept") {
			return fmt.Errorf("aborted, and read: %v", found)
		}
	}
	return nil
}

func users(ctx context.Context, seeds kgo.Opt) error {
	adm, err := administrator(seeds)
	if err != nil {
		return err
	}
	defer adm.Close()
	set := []kadm.UpsertSCRAM{{User: "franz", Mechanism: kadm.ScramSha512, Iterations: 4096, Password: "secret"}}
	altered, err := adm.AlterUserSCRAMs(ctx, nil, set)
	if err != nil {
		return err
	}
	if err := altered.Error(); err != nil {
		return err
	}
	for {
		described, err := adm.DescribeUserSCRAMs(ctx, "franz")
		if err != nil {
			return err
		}
		if user := described["franz"]; user.Err == nil && len(user.CredInfos) == 1 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func quotas(ctx context.Context, seeds kgo.Opt) error {
	adm, err := administrator(seeds)
	if err != nil {
		return err
	}
	defer adm.Close()
	entity := kadm.ClientQuotaEntity{{Type: "user"}}
	entry := kadm.AlterClientQuotaEntry{Entity: entity, Ops: []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: 1 << 30}}}
	altered, err := adm.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{entry})
	if err != nil {
		return err
	}
	if err := altered[0].Err; err != nil {
		return err
	}
	for {
		found, err := adm.DescribeClientQuotas(ctx, false, nil)
		if err != nil {
			return err
		}
		if len(found) == 1 && found[0].Values[0].Value == 1<<30 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
}
