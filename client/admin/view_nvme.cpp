// Reads the answer of /v1/nvme: directories, states that a drive failed to write, late answers, the
// last demotion and the last scrub.
#include <boost/json/value.hpp>

#include "client/admin/view_fields.h"
#include "client/admin/views.h"

namespace tidepool::client {
namespace {

namespace json = boost::json;

void ReadDirectory(Fields row, NvmeDirectoryView* directory) {
  row.Read("path", &directory->path)
      .Read("bytes", &directory->bytes)
      .Read("bytes_used", &directory->used);
  row.Read("bytes_free", &directory->free)
      .Read("bytes_read", &directory->read)
      .Read("bytes_written", &directory->written);
  row.Read("failed", &directory->failed);
}

// Common fields of a piece in every list. `Piece` is one of the views below.
template <typename Piece>
void ReadPiece(Fields* row, Piece* piece) {
  row->Read("job", &piece->job)
      .Read("name", &piece->name)
      .Read("chunk", &piece->chunk)
      .Read("piece", &piece->piece);
  row->Read("directory", &piece->directory).Read("offset", &piece->offset);
}

void ReadUnwritten(Fields unwritten, NvmeView* view) {
  unwritten.Read("writes_failed", &view->writes_failed)
      .Read("pieces_in_pool", &view->pieces_in_pool);
  unwritten.Read("bytes_in_pool", &view->bytes_in_pool)
      .Read("pieces_waiting", &view->pieces_waiting);

  unwritten.Array("pieces", [&](const json::value& value) {
    UnwrittenView& piece = view->unwritten.emplace_back();
    Fields row(value, unwritten.wrong());
    ReadPiece(&row, &piece);
    row.Read("error", &piece.error).Read("in_pool", &piece.in_pool);
  });
}

void ReadLate(Fields* fields, NvmeView* view) {
  fields->Array("late", [&](const json::value& value) {
    LateView& late = view->late.emplace_back();
    Fields row(value, fields->wrong());
    ReadPiece(&row, &late);
    row.Read("write", &late.write).Read("seconds", &late.seconds).Read("lost", &late.lost);
  });
}

void ReadDemotion(Fields demotion, DemotionView* moved) {
  demotion.Read("job", &moved->job)
      .Read("name", &moved->name)
      .Read("pieces", &moved->pieces)
      .Read("pieces_written", &moved->pieces_written);
  demotion.Read("jobs_moved", &moved->moved)
      .Read("jobs_failed", &moved->failed)
      .Read("jobs_dropped", &moved->dropped);
  demotion.Read("pool_bytes_freed", &moved->bytes_freed);
}

void ReadScrub(Fields scrub, NvmeView* view) {
  scrub.Read("state", &view->scrub_state)
      .Read("seconds", &view->seconds)
      .Read("pieces", &view->pieces);
  scrub.Read("pieces_checked", &view->pieces_checked)
      .Read("bytes_checked", &view->bytes_checked)
      .Read("pieces_damaged", &view->damaged);

  scrub.Array("damage", [&](const json::value& value) {
    DamageView& damage = view->damage.emplace_back();
    Fields row(value, scrub.wrong());
    ReadPiece(&row, &damage);
    row.Read("what", &damage.what);
  });
}

}  // namespace

Result<NvmeView> ReadNvme(std::string_view text) {
  return ReadDocument<NvmeView>(text, [](Fields& fields, NvmeView* view) {
    fields.Read("engine", &view->engine)
        .Read("repetitions", &view->repetitions)
        .Read("blocks_stalled", &view->stalled);
    fields.Array("directories", [&](const json::value& value) {
      ReadDirectory(Fields(value, fields.wrong()), &view->directories.emplace_back());
    });

    ReadUnwritten(fields.Object("unwritten"), view);
    ReadLate(&fields, view);
    ReadDemotion(fields.Object("demotion"), &view->demotion);
    ReadScrub(fields.Object("scrub"), view);
  });
}

}  // namespace tidepool::client
