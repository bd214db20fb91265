package engine

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"routerbench/internal/prefixcache"
)

// Prompts that make a window: some dozen for each engine, so that chance alone does not decide.
const windowPrompts = 64

// prefillModel is how prefill engines spend their time: each has a cache of prefixes, and computes one
// prompt after the other, at so many tokens a second for those that its cache does not hold.
type prefillModel struct {
	perSecond float64 // 0: no model, prompts take no time
	pages     int     // of each cache

	lock    sync.Mutex
	caches  []*prefixcache.Cache
	queues  []chan job
	recent  []int // tokens that each engine has computed in this window
	count   int   // prompts in it
	ratios  []float64
	figures PrefixFigures
}

type job struct {
	keys    []uint64
	tokens  int
	done    chan struct{}
	arrived time.Time
}

// PrefixFigures is what placement was worth. Requests of which no cache held a page have no owner; an owner
// holds the longest prefix of all caches, and there may be several.
type PrefixFigures struct {
	Tokens        int       `json:"tokens"`
	HitTokens     int       `json:"hit_tokens"`
	Owned         int       `json:"owned"`
	OwnerHits     int       `json:"owner_hits"`
	Requests      []int     `json:"requests"`
	Computed      []int     `json:"computed_tokens"`
	QueuedSeconds []float64 `json:"queued_seconds"`
	// Worst engine to mean of the tokens computed for each windowPrompts prompts in a row; mean of all such.
	WindowRatio float64 `json:"window_worst_to_mean"`
}

func newPrefillModel(engines, pages int, perSecond float64) *prefillModel {
	model := &prefillModel{perSecond: perSecond, pages: pages, queues: make([]chan job, engines)}
	model.reset()
	if perSecond > 0 {
		for i := range model.queues {
			model.queues[i] = make(chan job, 65536)
			go model.compute(i)
		}
	}
	return model
}

// reset empties caches and figures; to be called while no request is under way.
func (m *prefillModel) reset() {
	m.lock.Lock()
	defer m.lock.Unlock()
	n := len(m.queues)
	m.caches = make([]*prefixcache.Cache, n)
	for i := range m.caches {
		m.caches[i] = prefixcache.New(m.pages)
	}
	m.recent, m.count, m.ratios = make([]int, n), 0, nil
	m.figures = PrefixFigures{
		Requests: make([]int, n), Computed: make([]int, n), QueuedSeconds: make([]float64, n),
	}
}

// run returns when engine has computed the prompt of body.
func (m *prefillModel) run(engine int, body []byte) error {
	text, err := prompt(body)
	if err != nil {
		return fmt.Errorf("the body is no JSON: %w", err)
	}
	work := job{
		keys:    prefixcache.Keys(text),
		tokens:  len(text) / prefixcache.BytesPerToken,
		done:    make(chan struct{}),
		arrived: time.Now(),
	}
	m.lock.Lock()
	m.figures.Requests[engine]++
	best := 0
	for _, cache := range m.caches {
		best = max(best, cache.Match(work.keys))
	}
	if best > 0 {
		m.figures.Owned++
		if m.caches[engine].Match(work.keys) == best {
			m.figures.OwnerHits++
		}
	}
	m.lock.Unlock()
	m.queues[engine] <- work
	<-work.done
	return nil
}

// weigh counts computed tokens, and notes how uneven the engines were once a window is full.
func (m *prefillModel) weigh(engine, tokens int) {
	m.recent[engine] += tokens
	if m.count++; m.count < windowPrompts {
		return
	}
	total := 0
	for _, n := range m.recent {
		total += n
	}
	if total > 0 {
		m.ratios = append(m.ratios, float64(slices.Max(m.recent)*len(m.recent))/float64(total))
	}
	m.recent, m.count = make([]int, len(m.recent)), 0
}

func (m *prefillModel) compute(engine int) {
	for work := range m.queues[engine] {
		m.lock.Lock()
		hit := m.caches[engine].Match(work.keys) * prefixcache.PageTokens
		m.figures.Tokens += work.tokens
		m.figures.HitTokens += hit
		m.figures.Computed[engine] += work.tokens - hit
		m.figures.QueuedSeconds[engine] += time.Since(work.arrived).Seconds()
		m.weigh(engine, work.tokens-hit)
		m.lock.Unlock()
		time.Sleep(time.Duration(float64(work.tokens-hit) / m.perSecond * 1e9))
		m.lock.Lock()
		m.caches[engine].Insert(work.keys)
		m.lock.Unlock()
		close(work.done)
	}
}

func (m *prefillModel) snapshot() PrefixFigures {
	m.lock.Lock()
	defer m.lock.Unlock()
	copied := m.figures
	for _, ratio := range m.ratios {
		copied.WindowRatio += ratio / float64(len(m.ratios))
	}
	copied.Requests = append([]int(nil), m.figures.Requests...)
	copied.Computed = append([]int(nil), m.figures.Computed...)
	copied.QueuedSeconds = append([]float64(nil), m.figures.QueuedSeconds...)
	return copied
}
