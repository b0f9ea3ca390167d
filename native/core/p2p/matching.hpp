// Matching: which posted receive an arriving message goes to, and which arrived message a new receive takes. Both take
// constant time, however many receives and messages there are. A receive from any rank with a certain tag takes one
// look-up for each rank.
#pragma once
#include <vector>

#include "p2p/channel.hpp"
#include "p2p/request.hpp"

namespace rankwise {

// A message whose data its sender keeps until the receiver fetches it (offers.cpp).
struct Offer {
    int number;                      // by which both ranks identify it
    int slot;                        // where the receiver marks that it copies the data
    std::vector<Stretch> stretches;  // in the sender's memory; empty if the receiver cannot copy them
    bool fetched = false;            // the receiver has begun to copy the data, or requested it
    bool shared = false;             // and its sender may help
};

// A message that has arrived, or begun to.
struct Message {
    MessageHeader header;
    int from;
    uint64_t left;     // bytes still to come
    uint8_t* at;       // where the next one goes
    uint64_t number_;  // in the order of arrival at this rank
    std::optional<Offer> offer{};
    Memory kept{};                                                   // the bytes, until a receive matches
    std::shared_ptr<Request> receive{};                              // the matching receive
    std::shared_ptr<Request> awaiting{};                             // a synchronous send of this rank to itself
    Links<Message> in_queue{}, of_source{}, in_all{}, in_offered{};  // until a receive matches
    std::shared_ptr<Message> held{};                                 // itself, while it is in these lists
    bool offered() const { return offer && !offer->fetched; }        // nobody has begun to fetch its data
};

// Whether a receive of this kind, and of this count and dtype, accepts the message.
inline bool accepts(Wanted wanted, uint64_t count, DType dtype, const MessageHeader& h) {
    switch (wanted) {
    case Wanted::Exactly: return !h.object && count == h.count && dtype == DType(h.dtype);
    case Wanted::UpTo: return !h.object && h.bytes <= count * itemsize(dtype);
    case Wanted::Object: return h.object;
    case Wanted::Any: return true;
    }
    return false;
}

inline uint64_t matching_key(int peer, int tag) { return uint64_t(uint32_t(peer)) << 32 | uint32_t(tag); }

// The receives that are not complete, and among them those that have not matched a message.
class PostedReceives {
public:
    PostedReceives() = default;
    ~PostedReceives() { clear(); }
    void clear() {
        while (Request* r = all_.first()) {
            if (const auto message = std::move(r->message_)) message->receive = nullptr;  // which holds the request
            remove(*r);
        }
    }
    bool empty() const { return all_.empty(); }
    size_t size() const { return size_; }
    void add_matched(const std::shared_ptr<Request>& r) {
        r->held_ = r;
        all_.append(*r);
        ++size_;
    }
    void add_posted(const std::shared_ptr<Request>& r) {
        auto& queue = queues_.at(matching_key(r->peer_, r->tag_));  // first: it may throw
        add_matched(r);
        r->number_ = next_++;
        queue.append(*r);
        ++kinds_[kind(r->peer_, r->tag_)];
    }
    // It is about to match a message, whose source and tag it does not have yet.
    void leave_queue(Request& r) {
        queues_.remove(matching_key(r.peer_, r.tag_), r);
        --kinds_[kind(r.peer_, r.tag_)];
    }
    // It is complete, or about to be cancelled.
    void remove(Request& r) {
        if (r.state() == Request::State::Waiting) leave_queue(r);
        all_.remove(r);
        --size_;
        const auto last = std::move(r.held_);  // may be the last reference
    }
    // The first receive posted of those that match this message.
    Request* first_for(int from, int tag) const {
        Request* first = nullptr;
        if (!size_) return first;
        for (const int peer : {from, kAny})
            for (const int label : {tag, kAny}) {
                if (!tag_matches(label, tag) || !kinds_[kind(peer, label)]) continue;
                Request* const r = queues_.first(matching_key(peer, label));
                if (r && (!first || r->number_ < first->number_)) first = r;
            }
        return first;
    }
    template <class F> void for_each(F&& f) const {
        for (Request* r = all_.first(); r; r = all_.after(*r)) f(*r);
    }

private:
    static int kind(int peer, int tag) { return (peer == kAny) * 2 + (tag == kAny); }

    LinkedList<Request, &Request::in_all_> all_;
    Queues<Request, &Request::in_queue_> queues_;
    size_t kinds_[4] = {};  // receives in the queues: with a source and a tag, any tag, any source, any of both
    size_t size_ = 0;
    uint64_t next_ = 0;
};

// The messages that no receive has matched, in the order of arrival.
class ArrivedMessages {
public:
    explicit ArrivedMessages(int ranks) : from_(size_t(ranks)) {}
    ~ArrivedMessages() {
        while (Message* m = all_.first()) remove(*m);
    }
    void add(const std::shared_ptr<Message>& m) {
        auto& queue = queues_.at(key(*m));  // first: it may throw
        m->held = m;
        queue.append(*m);
        from_[size_t(m->from)].append(*m);
        all_.append(*m);
        if (m->offered()) offered_.append(*m);
        bytes_ += kept_bytes(*m);
    }
    // A message that was removed, and whose data is here: it comes before those that arrived later.
    void put_back(const std::shared_ptr<Message>& m) {
        auto& queue = queues_.at(key(*m));  // first: it may throw
        m->held = m;
        queue.put_back(*m);
        from_[size_t(m->from)].put_back(*m);
        all_.put_back(*m);
        bytes_ += kept_bytes(*m);
    }
    // The data of one that was offered has been fetched, or requested.
    void keeps(Message& m) {
        offered_.remove(m);
        bytes_ += kept_bytes(m);
    }
    uint64_t bytes() const { return bytes_; }  // that are kept
    // The message of a synchronous send of this rank to itself.
    Message* awaited_by(const Request& send) const {
        Message* m = all_.first();
        while (m && m->awaiting.get() != &send) m = all_.after(*m);
        return m;
    }
    template <class F> void for_each_awaiting(F&& f) const {
        for (Message* m = all_.first(); m; m = all_.after(*m))
            if (m->awaiting) f(*m->awaiting);
    }
    std::shared_ptr<Message> remove(Message& m) {
        bytes_ -= kept_bytes(m);
        queues_.remove(key(m), m);
        from_[size_t(m.from)].remove(m);
        all_.remove(m);
        if (m.offered()) offered_.remove(m);
        return std::move(m.held);
    }
    // Calls f with each message whose data is still with its sender; f may remove it.
    template <class F> void for_each_offered(F&& f) const {
        for (Message *m = offered_.first(), *next; m; m = next) {
            next = offered_.after(*m);
            f(*m);
        }
    }
    // The first message that a receive from `from` with `tag`, either of which may be kAny, matches.
    Message* first_for(int from, int tag) const {
        if (all_.empty()) return nullptr;
        if (tag == kAny) return from == kAny ? first_of(all_) : first_of(from_[size_t(from)]);
        if (from != kAny) return queues_.first(matching_key(from, tag));
        Message* first = nullptr;
        for (int p = 0; p < int(from_.size()); ++p) {
            Message* const m = from_[size_t(p)].empty() ? nullptr : queues_.first(matching_key(p, tag));
            if (m && (!first || m->number_ < first->number_)) first = m;
        }
        return first;
    }

private:
    // The first one that a receive with any tag matches.
    template <class List> static Message* first_of(const List& list) {
        Message* m = list.first();
        while (m && !tag_matches(kAny, m->header.tag)) m = list.after(*m);
        return m;
    }
    static uint64_t kept_bytes(const Message& m) { return m.kept ? m.header.bytes : 0; }
    static uint64_t key(const Message& m) { return matching_key(m.from, m.header.tag); }

    LinkedList<Message, &Message::in_all> all_;
    LinkedList<Message, &Message::in_offered> offered_;
    std::vector<LinkedList<Message, &Message::of_source>> from_;
    Queues<Message, &Message::in_queue> queues_;
    uint64_t bytes_ = 0;
};

}  // namespace rankwise
