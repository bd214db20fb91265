package engine

import (
	"fmt"
	"strings"
	"testing"
)

func TestOwnerIsWhoHoldsTheLongestPrefix(t *testing.T) {
	model := newPrefillModel(2, 100, 1e9)
	ask := func(engine int, text string) {
		if err := model.run(engine, fmt.Appendf(nil, `{"text":%q}`, text)); err != nil {
			t.Fatal(err)
		}
	}
	shared := strings.Repeat("s", 512)
	ask(0, shared)                          // nobody's
	ask(0, shared+strings.Repeat("a", 256)) // 0 holds two pages of it
	ask(1, shared+strings.Repeat("a", 256)) // 0 holds three, 1 none
	ask(1, shared+strings.Repeat("b", 256)) // both hold two
	got := model.snapshot()
	if got.Owned != 3 || got.OwnerHits != 2 {
		t.Errorf("%d of %d went to an owner, want 2 of 3", got.OwnerHits, got.Owned)
	}
	if got.HitTokens != 256 || got.Tokens != 128+3*192 {
		t.Errorf("hit %d of %d tokens", got.HitTokens, got.Tokens)
	}
	if got.Computed[0] != 128+64 || got.Computed[1] != 192+64 {
		t.Errorf("computed %v", got.Computed)
	}
}

func TestUnevennessOfEachWindow(t *testing.T) {
	model := newPrefillModel(2, 100, 0)
	for range 2 * windowPrompts {
		model.weigh(0, 10) // all on one engine: twice the mean
	}
	for i := range 2 * windowPrompts {
		model.weigh(i%2, 10)
	}
	if got := model.snapshot().WindowRatio; got != 1.5 {
		t.Errorf("%v, want 1.5", got)
	}
}
